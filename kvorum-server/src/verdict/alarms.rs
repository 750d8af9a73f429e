//! The table of alarms: what can be wrong with a cluster, in a sentence, with its remedy.
//!
//! The verdict raises those that a status shows; Prometheus raises those that metrics show. `docs/operating.md` and
//! `deploy/alerts.yml` are written from this table (`KVORUM_WRITE_TEXTS=1 cargo test -p kvorum-server --lib alarms`), so
//! that all of them say the same.

/// How soon a person must act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// At once: requests fail, or would with the next failure.
    Critical,
    /// Today.
    Warning,
    /// Nothing to do, or no hurry.
    Info,
}

impl Severity {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct AlarmKind {
    /// Its name, which is also its anchor in `docs/operating.md`.
    pub name: &'static str,
    /// How soon a person must act.
    pub severity: Severity,
    /// When it is raised.
    pub condition: &'static str,
    /// What is wrong; `{node}` stands for the node's URL and `{detail}` for what was measured.
    pub sentence: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// The condition in Prometheus' language, and how long it must hold; none if no metric shows it.
    pub alert: Option<(&'static str, &'static str)>,
}

macro_rules! alarms {
    ($($row:ident = $name:literal, $severity:ident, $condition:literal, $sentence:literal, $remedy:literal, $alert:expr;)+) => {
        $(
            #[doc = $condition]
            pub(super) const $row: &AlarmKind = &AlarmKind {
                name: $name,
                severity: Severity::$severity,
                condition: $condition,
                sentence: $sentence,
                remedy: $remedy,
                alert: $alert,
            };
        )+
        /// All alarms, in the order in which they are shown: the most urgent first.
        pub const ALARMS: &[&AlarmKind] = &[$($row),+];
    };
}

alarms! {
    NO_QUORUM = "no-quorum", Critical,
        "A default request finds fewer replicas than must confirm it.",
        "default requests through {node} find too few replicas",
        "Bring back the nodes that are down, or wait until their stores are quorum-eligible. Until then requests with a smaller ACK succeed, with weaker guarantees.",
        Some(("rate(kvorum_writes_without_quorum_total[5m]) + rate(kvorum_reads_without_quorum_total[5m]) > 0", "1m"));
    NODE_DOWN = "node-down", Critical,
        "A node does not answer.",
        "{node} does not answer: {detail}",
        "Start the node, or find out why the others cannot reach it. They keep hints of what it misses for --hint-max-age (3 h); anti-entropy repairs the rest.",
        Some(("kvorum_peer_up == 0", "1m"));
    NODE_ENDING = "node-ending", Critical,
        "A thread that the node needs has ended.",
        "{node} is about to end: {detail}",
        "Nothing, if a service manager restarts it; otherwise start it. Report the panic in its log.",
        None;
    NODE_REMOVED = "node-removed", Critical,
        "A node runs that was removed from the cluster.",
        "{node} serves nobody: {detail}",
        "Stop it, and take it from the clients' lists. To use it again, start it with an empty data directory and --join, and plan it.",
        None;
    STORE_FAILED = "store-failed", Critical,
        "The store could not write.",
        "the store of {node} failed and takes no writes: {detail}",
        "Look at the disk and the kernel's log, repair the cause, then restart the node. If the disk is lost, start it with an empty directory: the others refill it.",
        Some(("kvorum_store_state{state=\"failed\"} == 1", "0m"));
    DISK_FULL = "disk-full", Critical,
        "The file system of the data directory is full.",
        "the disk of {node} is full: it takes no values, only deletions",
        "Free space on the file system of the data directory, or enlarge it. The node takes writes again by itself within seconds.",
        Some(("kvorum_store_state{state=\"disk-full\"} == 1", "0m"));
    CLOCK_OFF = "clock-off", Critical,
        "The clock is further from a majority of the clocks than --clock-offset-limit.",
        "the clock of {node} is too far from those of a majority: it takes no writes",
        "Set the clock and keep it set (chrony or another NTP client). The node takes writes again by itself.",
        Some(("kvorum_clock_off == 1", "0m"));
    STORE_DAMAGED = "store-damaged", Critical,
        "The store is damaged beyond single records.",
        "the store of {node} is damaged: {detail}",
        "In a cluster, wait: the store is quarantined and refilled from the other nodes. Then look for the cause (disk, memory). A lone node needs its backup.",
        Some(("kvorum_store_damaged == 1", "0m"));
    STORE_WAITING = "store-waiting", Warning,
        "The machine ran out of descriptors, memory or threads.",
        "the store of {node} takes no writes until the machine has what it lacks: {detail}",
        "Raise the limit that the name says (ulimit -n, memory, tasks of the service). The node takes writes again by itself.",
        Some(("kvorum_store_state{state!~\"ok|disk-full|failed\"} == 1", "1m"));
    DISK_LOW = "disk-low", Warning,
        "Less than a tenth of the file system of the data directory is free.",
        "the disk of {node} has only {detail} free",
        "Enlarge the file system, or delete data, before it is full. Compactions need room for a copy of what they merge.",
        Some(("kvorum_disk_free_bytes / kvorum_disk_size_bytes < 0.1", "10m"));
    NOT_ELIGIBLE = "not-eligible", Warning,
        "The store counts in no quorum.",
        "the store of {node} counts in no quorum: {detail}",
        "Wait while it is refilled or meets the other nodes: a majority must be up. For a new cluster whose nodes cannot all be up, kvorum bootstrap.",
        Some(("kvorum_store_votes == 0", "5m"));
    CLOCK_DRIFT = "clock-drift", Warning,
        "A clock differs from another node's by more than --max-clock-offset.",
        "the clock of {node} is {detail}",
        "Set the clock and keep it set (chrony or another NTP client): expiry instants come from it, and beyond --clock-offset-limit the node takes no writes.",
        // Where the clocks of most nodes that see it differ from its own: each pair would blame both.
        Some(("max by (peer) (abs(kvorum_peer_clock_offset_seconds)) and on (peer) count by (peer) (abs(kvorum_peer_clock_offset_seconds) > 0.5) > 0.5 * count by (peer) (kvorum_peer_clock_offset_seconds)", "5m"));
    DAMAGED_RECORDS = "damaged-records", Warning,
        "Damaged records are not repaired yet.",
        "{node} has {detail} damaged records",
        "Wait: other nodes' copies replace them. If the number stays, other replicas are down or damaged as well. Look for the cause (disk, memory).",
        Some(("kvorum_damaged_records > 0", "15m"));
    REPLICAS_LAG = "replicas-lag", Warning,
        "For an hour, not all replicas have agreed.",
        "not all replicas agree on what was written in the last {detail}; {node} holds that back",
        "Bring the node back that holds it back, or remove its cause. Until then deleted keys keep their disk space.",
        Some(("time() - kvorum_agreed_until_timestamp_seconds > 3600 and kvorum_agreed_until_timestamp_seconds > 0", "10m"));
    PARTITIONS_TO_REPAIR = "partitions-to-repair", Warning,
        "Hints for a node that answers were dropped, because they were too many or too old.",
        "{node} lacks writes of {detail} partitions, for which hints were dropped",
        "Wait for anti-entropy, or run kvorum repair. If it happens often, raise --hint-max-size or --hint-max-age.",
        Some(("kvorum_partitions_to_repair > 0 and kvorum_peer_up == 1", "30m"));
    CERTIFICATE_EXPIRES = "certificate-expires", Warning,
        "The certificate of a node holds for less than 14 days.",
        "the certificate of {node} {detail}",
        "Renew it (kvorum tls init --renew URL, or as your authority does it) and replace the two files: the node takes them within 5 s. After its end no client and no other node connects to it.",
        Some(("kvorum_tls_certificate_expiry_timestamp_seconds - time() < 14 * 86400", "0m"));
    TLS_FILES = "tls-files", Warning,
        "A node cannot use its certificates and keys.",
        "{node} goes on with the last good certificates and keys: {detail}",
        "Repair the files that the node's log names. Until then a renewal or a withdrawal in them is not in force.",
        Some(("increase(kvorum_tls_file_failures_total[5m]) > 0", "1m"));
    NOT_READY = "not-ready", Info,
        "The node starts or drains.",
        "{node} does not serve yet or no longer: it is {detail}",
        "Wait: a node that starts opens its store and takes the hints that its peers hold, for at most --hint-drain-timeout. If it stays so, read its log.",
        None;
    WORKER_PAUSED = "worker-paused", Info,
        "An operator has paused background work.",
        "background work of {node} is paused: {detail}",
        "Resume it with POST /admin/workers/NAME/resume, or wait: every pause ends by itself.",
        None;
    MIXED_VERSIONS = "mixed-versions", Info,
        "Nodes have different versions.",
        "the nodes have different versions: {detail}",
        "Finish the upgrade, one node after the other.",
        Some(("count(count by (version, commit) (kvorum_build_info)) > 1", "1h"));
    REQUESTS_SLOW = "requests-slow", Warning,
        "One in a hundred writes or reads takes longer than a quarter of a second.",
        "requests to {node} are slow",
        "Compare kvorum_sync_duration_seconds (the disk) and kvorum_peer_call_duration_seconds (a peer); kvorum serve --slow-request 250ms logs which replica and which wait.",
        Some(("histogram_quantile(0.99, sum by (instance, le) (rate(kvorum_request_duration_seconds_bucket{operation=~\"get|put|delete\"}[5m]))) > 0.25", "10m"));
    OVERLOADED = "overloaded", Warning,
        "More than one in a hundred requests is turned away with 503.",
        "{node} turns requests away",
        "Send less, or add nodes. kvorum_connections_refused_total, kvorum_commit_queue_requests and kvorum_body_in_flight_bytes say which bound is reached.",
        Some(("sum by (instance) (rate(kvorum_requests_total{status=\"503\"}[5m])) / sum by (instance) (rate(kvorum_requests_total[5m])) > 0.01", "5m"));
    PARTS_RESTARTED = "parts-restarted", Warning,
        "A thread or task ended unexpectedly and was started again.",
        "a thread or task of {node} ended unexpectedly",
        "Read the panic in the node's log and report it. The node goes on.",
        Some(("increase(kvorum_part_restarts_total[15m]) > 0", "0m"));
    TOKEN_FILE = "token-file", Warning,
        "The token file is missing or not valid; the last good tokens hold.",
        "the token file of {node} cannot be used",
        "Repair the file with kvorum token; the log says what is wrong with it.",
        Some(("increase(kvorum_token_file_failures_total[15m]) > 0", "5m"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::Path;

    /// The alarm's name as an alert's, in one word.
    fn alert_name(name: &str) -> String {
        let words = name.split('-').map(|word| word[..1].to_uppercase() + &word[1..]);
        format!("Kvorum{}", words.collect::<String>())
    }

    fn quoted(text: &str) -> String {
        serde_json::Value::from(text).to_string()
    }

    /// What was measured, in an alert: its value with a unit.
    fn value_of(name: &str) -> &'static str {
        match name {
            "disk-low" => "{{ $value | humanizePercentage }}",
            "clock-drift" => "off by up to {{ $value | humanizeDuration }}",
            "replicas-lag" => "{{ $value | humanizeDuration }}",
            "certificate-expires" => "expires in {{ $value | humanizeDuration }}",
            _ => "{{ $value }}",
        }
    }

    fn alerts() -> String {
        let mut text = "# Alerts for Prometheus. Written from the table of alarms (kvorum-server/src/verdict/alarms.rs):\n\
                        # KVORUM_WRITE_TEXTS=1 cargo test -p kvorum-server --lib alarms\n\
                        groups:\n  - name: kvorum\n    rules:\n"
            .to_owned();
        for alarm in ALARMS {
            let Some((expression, lasts)) = alarm.alert else { continue };
            let sentence = alarm.sentence.replace("{node}", "{{ or $labels.peer $labels.instance }}");
            let sentence = sentence.replace(": {detail}", "").replace("{detail}", value_of(alarm.name));
            let _ = write!(
                text,
                "      - alert: {}\n        expr: {}\n        for: {lasts}\n        labels:\n          severity: {}\n        \
                 annotations:\n          summary: {}\n          remedy: {}\n          runbook: {}\n",
                alert_name(alarm.name),
                quoted(expression),
                alarm.severity.name(),
                quoted(&sentence),
                quoted(alarm.remedy),
                quoted(&format!("docs/operating.md#{}", alarm.name)),
            );
        }
        text
    }

    fn page() -> String {
        let mut text = String::new();
        for alarm in ALARMS {
            let _ = write!(
                text,
                "### {}\n{} ({})\n\n- **It says:** {}.\n- **Do:** {}\n",
                alarm.name,
                alarm.condition,
                alarm.severity.name(),
                alarm.sentence.replace("{node}", "NODE").replace("{detail}", "…"),
                alarm.remedy,
            );
            if let Some((expression, lasts)) = alarm.alert {
                let _ = writeln!(text, "- **Alert:** `{expression}` for {lasts}");
            }
            text.push('\n');
        }
        text
    }

    const BEGIN: &str = "<!-- The table of alarms begins. -->\n";
    const END: &str = "<!-- The table of alarms ends. -->";

    /// Goal: the documents and the alerts say what the table says. Method: both are made anew and compared;
    /// `KVORUM_WRITE_TEXTS=1` writes them.
    #[test]
    fn documents_and_alerts_follow_the_table_of_alarms() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let [alerts_path, page_path] = ["deploy/alerts.yml", "docs/operating.md"].map(|name| root.join(name));
        #[allow(clippy::disallowed_methods, reason = "a test reads the source tree")]
        let [old_alerts, old_page] =
            [&alerts_path, &page_path].map(|path| std::fs::read_to_string(path).unwrap_or_default());
        let (before, rest) =
            old_page.split_once(BEGIN).expect("docs/operating.md has no place for the alarms");
        let (_, after) = rest.split_once(END).expect("the place for the alarms does not end");
        let new_page = format!("{before}{BEGIN}{}{END}{after}", page());
        if std::env::var_os("KVORUM_WRITE_TEXTS").is_some() {
            #[allow(clippy::disallowed_methods, reason = "a developer asks for it")]
            for (path, text) in [(&alerts_path, &alerts()), (&page_path, &new_page)] {
                std::fs::write(path, text).unwrap();
            }
            return;
        }
        let hint = "KVORUM_WRITE_TEXTS=1 cargo test -p kvorum-server --lib alarms writes it";
        assert!(old_alerts == alerts(), "deploy/alerts.yml is not that of the table: {hint}");
        assert!(old_page == new_page, "docs/operating.md is not that of the table: {hint}");
    }

    /// Names are anchors, and unique; every alarm has a sentence about a node or what was measured, and a remedy.
    #[test]
    fn alarms_are_complete() {
        let names: BTreeSet<_> = ALARMS.iter().map(|alarm| alarm.name).collect();
        assert_eq!(names.len(), ALARMS.len());
        for alarm in ALARMS {
            assert!(
                alarm.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'),
                "{}",
                alarm.name
            );
            assert!(
                alarm.sentence.contains("{node}") || alarm.sentence.contains("{detail}"),
                "{}",
                alarm.name
            );
            assert!(alarm.remedy.len() > 20 && alarm.remedy.ends_with('.'), "{}", alarm.name);
            assert!(alarm.condition.ends_with('.') && !alarm.sentence.ends_with('.'), "{}", alarm.name);
        }
    }
}
