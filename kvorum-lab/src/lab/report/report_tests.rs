use super::*;
use crate::lab::fixture::{results, run};
use crate::lab::profile::Stacks;
use crate::lab::results::ProfileRecord;

fn made() -> (Results, Profiles) {
    let of = |millis: &[f64]| millis.iter().map(|&one| run("PUT", one)).collect::<Vec<_>>();
    let (one, two) = (of(&[1.0, 1.01, 0.99]), of(&[2.0, 2.01, 1.99]));
    let results = results(&[("one <b>", &one), ("two", &two)]);
    let key = |name: &str| (name.to_owned(), "PUT".to_owned(), Event::Cpu);
    let stacks = |text: &str| Stacks::read(text).unwrap();
    let profiles = [
        (key("one <b>"), stacks("net;node::http 900\n")),
        (key("two"), stacks("net;node::http</script> 900\nnet;node::peer 300\n")),
    ];
    (results, profiles.into())
}

/// The report of `results`, in English.
fn with<T>(results: &Results, profiles: &Profiles, use_it: impl FnOnce(&Report<'_>) -> T) -> T {
    let (findings, flames) = (Findings::of(results), Flame::all(results, profiles));
    use_it(&Report { results, findings: &findings, profiles, language: Language::En, flames })
}

fn write_to(folder: &Path, results: &Results, profiles: &Profiles, language: Language) {
    write(folder, results, &Findings::of(results), profiles, language).unwrap();
}

/// Goal: tables of figures and changes hold the measurements, with marks. Method: the whole Markdown of both.
#[test]
fn tables_are_as_expected() {
    let (results, profiles) = made();
    let (figures, changes) = with(&results, &profiles, |report| {
        (report.values("PUT").markdown(), report.changes("PUT").markdown().replace('\u{a0}', " "))
    });
    let figures = figures.replace('\u{a0}', " ");
    for line in [
        "### PUT: figures",
        "|  | one <b> | two |",
        "| operations/s | 1,000 ± 0.0 % | 1,000 ± 0.0 % |",
        "| latency, p99 | 1.00 ms ± 2.5 % | 2.00 ms ± 1.2 % |",
        "| CPU of the cluster per operation | 20.0 µs ± 0.0 % | 20.0 µs ± 0.0 % |",
        "| memory of the cluster, resident | 10.0 MiB ± 0.0 % | 10.0 MiB ± 0.0 % |",
        "| failed operations | 0 | 0 |",
    ] {
        assert!(figures.lines().any(|one| one == line), "{line} is not in\n{figures}");
    }
    assert!(changes.contains("|  | one <b> → two |"), "{changes}");
    assert!(changes.contains("| latency, p99 | +100 % (+97.5…+102.5 %) * |"), "{changes}");
    assert!(changes.contains("| operations/s | +0.0 % |"), "{changes}");
}

/// Goal: the folder holds a page that needs no other file, a text, and a file for each flame graph. Method:
/// write it. Then look for references that would load something, for names that were not escaped, and for
/// each file that is linked.
#[test]
fn the_page_stands_alone() {
    let (results, profiles) = made();
    let folder = tempfile::tempdir().unwrap();
    write_to(folder.path(), &results, &profiles, Language::En);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let page = read("report.html");
    for word in ["<script src", "<link rel=\"stylesheet", "<img", "@import", "url(", "fetch(", "https://"] {
        assert!(!page.contains(word), "the page has {word}");
    }
    assert!(page.contains("one &lt;b&gt;") && !page.contains("one <b></th>"), "a name is not escaped");
    assert!(page.contains("node::http<\\/script>"), "a frame could end the script");
    assert!(page.contains("class=\"line c1\""), "the second configuration has no line");
    let text = read("report.md");
    let links: Vec<&str> = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert_eq!(links.len(), 3, "two configurations, one difference: {links:?}");
    for link in links {
        assert!(read(link).contains("</svg>"), "{link}");
    }
    assert!(text.contains("kvorum bench put -R1000") && !text.contains("Detailed Percentile"), "{text}");
}

/// Goal: the driver's command can be pasted behind the nodes' own, which are shown with ports from 8080 on; a cluster that runs
/// already keeps its ports. Method: a run of two nodes, of which one URL begins like the other.
#[test]
fn commands_name_the_ports_of_the_nodes_shown() {
    let (mut results, _) = made();
    let mut shown = |node_command: &str| {
        let configuration = &mut results.configurations[0];
        configuration.commands = vec![node_command.to_owned(); 2];
        let mut run = run("PUT", 1.0);
        let urls = "http://127.0.0.1:4123 http://127.0.0.1:41231";
        run.command = format!("kvorum bench put {urls}");
        run.text = format!("Running 1s test @ {urls}\n  2 threads\n");
        run_text(configuration, &run)
    };
    let urls = "http://127.0.0.1:8080 http://127.0.0.1:8081";
    let expect = format!("$ kvorum bench put {urls}\nRunning 1s test @ {urls}\n  2 threads\n");
    assert_eq!(shown("kvorum serve --listen 127.0.0.1:8080"), expect);
    assert!(shown("(runs already) http://127.0.0.1:4123").contains("@ http://127.0.0.1:4123 "));
}

/// Goal: both reports of a quick run say that its figures are no results. Method: look for the text.
#[test]
fn a_quick_report_says_so() {
    let (mut results, profiles) = made();
    results.is_quick = true;
    let folder = tempfile::tempdir().unwrap();
    write_to(folder.path(), &results, &profiles, Language::En);
    for name in ["report.md", "report.html"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("Its figures are not results."), "{name}");
    }
}

/// Goal: the report shows the cost of each profile, and no row for a load without one. Method: the whole
/// table.
#[test]
fn the_cost_of_profiles_is_told() {
    let (mut results, _) = made();
    let cost =
        |results: &Results| with(results, &Profiles::new(), |report: &Report<'_>| report.cost_of_profiles());
    assert!(cost(&results).is_none());
    let record = |event, cpu| ProfileRecord {
        load: "PUT".into(),
        event,
        seconds: 5,
        operations: 5000.0,
        total: 1,
        cpu_micros_per_operation: cpu,
        unprofiled_cpu_micros_per_operation: Some(20.0),
        file: String::new(),
    };
    results.steps[0].profiles = vec![record(Event::Cpu, Some(20.5)), record(Event::Lock, None)];
    let table = cost(&results).unwrap().markdown();
    assert!(table.contains("| one <b> | PUT | 20.0 | 20.5 | – | – |"), "{table}");
    assert!(!table.contains("| two |"), "{table}");
}

/// Goal: the Russian report is Russian: no heading of the page is left in English. Method: both texts; headings are looked for
/// latin words that are no figure's name.
#[test]
fn a_russian_report() {
    let (results, profiles) = made();
    let folder = tempfile::tempdir().unwrap();
    write_to(folder.path(), &results, &profiles, Language::Ru);
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let page = read("report.html");
    assert!(page.contains("<html lang=\"ru\">") && page.contains("<h2>Выводы</h2>"));
    let text = read("report.md");
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("## ")).collect();
    assert!(headings.len() >= 5, "{headings:?}");
    for heading in headings {
        assert!(heading.chars().any(|letter| ('а'..='я').contains(&letter)), "{heading}");
    }
}

/// Goal: warnings stand behind their count, and as a mark at the configuration that they are about. Method: one late driver.
#[test]
fn warnings_are_marked() {
    let (mut results, profiles) = made();
    results.steps[0].runs[0].is_driver_late = true;
    let folder = tempfile::tempdir().unwrap();
    write_to(folder.path(), &results, &profiles, Language::En);
    let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.contains("<summary>Warnings: 1</summary>"), "no count");
    assert_eq!(page.matches("class=\"mark\"").count(), 1, "one configuration has a mark");
    assert!(page.contains("<details class=\"warnings\"><summary>"), "a doubt is no reason to open it");
}

/// Goal: the processes of the nodes are in both reports, with their pauses; where nobody looked, there is no section.
/// Method: a configuration with everything, one without.
#[test]
fn processes_are_shown() {
    use crate::lab::results::{Pause, Sample, WarmUp};
    let mut watched = run("PUT", 1.0);
    let second = |second, cores| Sample { second, cores, resident_bytes: 64 << 20, threads: 12 };
    watched.samples = vec![second(1.0, 0.5), second(2.0, 1.5)];
    watched.pauses =
        Some(vec![Pause { second: 0.4, seconds: 0.0025 }, Pause { second: 0.8, seconds: 0.005 }]);
    let warm_up =
        WarmUp { seconds: 20.0, is_settled: Some(false), cpu_micros_per_operation: vec![90.0, 40.0] };
    watched.warm_up = Some(warm_up);
    let seen = results(&[("java", &[watched]), ("other", &[run("PUT", 1.0)])]);
    let none = Profiles::new();
    let (table, page) =
        with(&seen, &none, |report| (report.processes("PUT").markdown(), report.processes_html("PUT")));
    let table = table.replace('\u{a0}', " ");
    for line in [
        "| warm-up, s, the longest | 20.0, not settled in 1 of 1 | – |",
        "| CPU, cores, mean | 1.00 | – |",
        "| memory, the most | 64.0 MiB | – |",
        "| threads, the most | 12 | – |",
        "| GC pauses per minute | 120.0 | – |",
        "| GC pauses, the longest | 5.00 ms | – |",
        "| GC pauses, % of the time | 0.75 | – |",
    ] {
        assert!(table.lines().any(|one| one == line), "{line} is not in\n{table}");
    }
    assert_eq!(page.matches("<svg").count(), 3, "cores, memory and pauses of one configuration: {page}");
    let unseen = results(&[("other", &[run("PUT", 1.0)])]);
    with(&unseen, &none, |report| assert_eq!(report.processes_html("PUT"), ""));
}
