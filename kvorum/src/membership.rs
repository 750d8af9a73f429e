//! `kvorum cluster`: shows the configuration of the cluster, and plans and applies changes of it.
//!
//! A plan is kept by the node that made it, so these commands ask one node: the first of `--url`.

use super::client::{DEFAULT_URL, Failure, builder_of, on_node, switch, write_out};
use super::{cluster, text_of};
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use kvorum_client::Client;
use kvorum_server::verdict::bytes;
use serde_json::Value;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::Instant;

/// How long the commands try that wait for other nodes, unless `--timeout` says otherwise.
const TIMEOUT: Duration = Duration::from_mins(1);
/// The interval between two looks while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(super) fn command() -> Command {
    let json = || switch("json", "As JSON");
    Command::new("cluster")
        .about("Shows who belongs to the cluster, and plans and applies changes")
        .subcommand_required(true)
        .subcommand(
            on_node(Command::new("show").about(
                "Prints the configuration of the cluster: its epoch, its members, and the plan that the node keeps",
            ))
            .arg(json()),
        )
        .subcommand(plan_command())
        .subcommand(
            on_node(Command::new("apply").about("Applies the plan, and waits until it is decided"))
                .arg(
                    Arg::new("epoch")
                        .value_name("EPOCH")
                        .required(true)
                        .value_parser(value_parser!(u64))
                        .help("The epoch that the plan was made on, as plan prints it"),
                )
                .arg(json()),
        )
        .subcommand(
            on_node(Command::new("force").about(
                "Goes on without members that are lost for good, where no majority is left; without --epoch it only prints what \
                 it would do",
            ))
            .arg(
                Arg::new("lost")
                    .long("lost")
                    .value_name("NODE")
                    .required(true)
                    .num_args(1..)
                    .action(ArgAction::Append)
                    .help("The lost members, each by its URL or its id: their stores are refused for good"),
            )
            .arg(
                Arg::new("epoch")
                    .long("epoch")
                    .value_name("EPOCH")
                    .value_parser(value_parser!(u64))
                    .help("Do it, if the cluster is still at this epoch, as force prints it without this"),
            )
            .arg(json()),
        )
        .subcommand(on_node(Command::new("cancel").about("Drops the plan, and turns the change under way round")).arg(json()))
        .subcommand(
            on_node(Command::new("wait").about("Waits until no change is under way, no member lacks records, and all work with the newest epoch"))
                .arg(json()),
        )
        .subcommand(
            on_node(Command::new("upgrade").about(
                "Raises the feature level to the highest that all members are able to work at, and waits: plan, apply and \
                 wait in one",
            ))
            .arg(json()),
        )
}

/// The changes that can be planned, each with its arguments.
fn plan_command() -> Command {
    let change = |name: &'static str, about: &'static str| {
        on_node(Command::new(name).about(about)).arg(switch("json", "As JSON"))
    };
    let moving = |name: &'static str, about: &'static str| {
        change(name, about).arg(
            Arg::new("window")
                .long("window")
                .value_name("PARTITIONS")
                .value_parser(value_parser!(u32).range(256..=65536))
                .help("Move so many partitions at once [default: 256]"),
        )
    };
    let needed = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).value_name(value).required(true).help(help)
    };
    let member = || needed("node", "NODE", "A member: its URL or its id, as show prints them");
    let newcomer =
        || needed("new", "URL", "The URL of the node that joins; it must run, with an empty data directory");
    let weight = || value_parser!(u32).range(1..);
    let zone_flag = |help: &'static str| Arg::new("zone").long("zone").value_name("ZONE").help(help);
    let weight_flag = |help: &'static str| {
        Arg::new("weight").long("weight").value_name("N").value_parser(weight()).help(help)
    };
    Command::new("plan")
        .about("Plans a change on the current epoch, and prints what it changes and moves")
        .subcommand_required(true)
        .subcommand(change("name", "Name the stores of all members: the first change of every cluster"))
        .subcommand(change(
            "upgrade",
            "Raise the feature level to the highest that all members are able to work at",
        ))
        .subcommand(
            moving("add", "A node joins")
                .arg(newcomer().required(false).help(
                    "The URL of the node that joins; it must run, with an empty data directory. Without it, kvorum dev starts one",
                ))
                .arg(zone_flag("Its failure domain [default: that of its --zone, or none]"))
                .arg(weight_flag("Its share of the data in proportion to the others' [default: that of its --weight, or 1]")),
        )
        .subcommand(moving("remove", "A member leaves; its store never comes back").arg(member()))
        .subcommand(
            moving("replace", "A node joins in the place of a member, which leaves and need not be alive")
                .arg(member())
                .arg(newcomer())
                .arg(zone_flag("Its failure domain [default: that of its --zone, or of the member]"))
                .arg(weight_flag("Its share of the data [default: that of its --weight, or of the member]")),
        )
        .subcommand(moving("weight", "A member gets another share of the data").arg(member()).arg(
            needed("share", "N", "Its weight: the share in proportion to the others'").value_parser(weight()),
        ))
        .subcommand(moving("zone", "A member is in another failure domain").arg(member()).arg(needed(
            "domain",
            "ZONE",
            "Its zone: up to 64 visible ASCII characters; \"\" for none",
        )))
        .subcommand(
            change("store", "A member has lost its disk: name its new store, which is refilled").arg(member()),
        )
}

/// `text` as the value of a parameter.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut encoded, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.extend(["%", &format!("{byte:02X}")]);
        }
        encoded
    })
}

/// The query of a plan.
fn query_of(change: &str, matches: &ArgMatches) -> String {
    let mut query = format!("change={change}");
    // Arguments of other changes are not there.
    let text = |name: &str| matches.try_get_one::<String>(name).ok().flatten().cloned();
    let number = |name: &str| matches.try_get_one::<u32>(name).ok().flatten().map(u32::to_string);
    let parameters = [
        ("node", text("node")),
        ("url", text("new")),
        ("zone", text("zone").or_else(|| text("domain"))),
        ("weight", number("weight").or_else(|| number("share"))),
        ("window", number("window")),
    ];
    for (name, value) in parameters {
        if let Some(value) = value {
            query.extend(["&", name, "=", &encoded(&value)]);
        }
    }
    query
}

pub(super) async fn run(word: &str, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    // A plan has its flags at the change behind it.
    let (change, matches) = match matches.subcommand() {
        Some((change, matches)) if word == "plan" => (change, matches),
        _ => ("", matches),
    };
    let client = connect(word, matches)?;
    let page = match word {
        "show" => page_of(&client.cluster(matches.get_flag("json")).await?)?,
        "plan" => {
            let body = order(&client, &format!("plan?{}", query_of(change, matches))).await?;
            let planned = parse(&body)?;
            let room =
                if matches.get_flag("json") { Vec::new() } else { room_lines(&planned, matches).await? };
            shown(&body, matches, &plan_lines(&planned, &room))
        }
        "apply" => {
            let epoch = matches.get_one::<u64>("epoch").copied().unwrap_or_default();
            let body = order(&client, &format!("apply?epoch={epoch}")).await?;
            shown(&body, matches, &adopted_line(&parse(&body)?))
        }
        "force" => force(&client, matches).await?,
        "cancel" => {
            let body = order(&client, "cancel").await?;
            shown(&body, matches, &cancelled_line(&parse(&body)?))
        }
        "wait" => wait(&client, matches).await?,
        "upgrade" => {
            upgrade(&client).await?;
            wait(&client, matches).await?
        }
        _ => return Err(Failure::Usage(format!("no such command: {word}"))),
    };
    write_out(page.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn connect(word: &str, matches: &ArgMatches) -> Result<Client, Failure> {
    let urls = text_of(matches, "url").map(str::to_owned);
    let urls = urls.or_else(|| std::env::var("KVORUM_URL").ok()).unwrap_or_else(|| DEFAULT_URL.to_owned());
    let first = urls.split(',').next().unwrap_or_default().trim().to_owned();
    let mut builder = builder_of(matches)?;
    if matches!(word, "apply" | "force" | "upgrade" | "wait") {
        builder = builder.timeout(timeout_of(matches));
    }
    Ok(builder.nodes([first.as_str()]).build()?)
}

fn timeout_of(matches: &ArgMatches) -> Duration {
    matches.get_one::<u64>("timeout").map_or(TIMEOUT, |seconds| Duration::from_secs(*seconds))
}

fn page_of(page: &kvorum_client::Page) -> Result<String, Failure> {
    let text = String::from_utf8_lossy(&page.body);
    if page.code == 200 {
        return Ok(text.into_owned());
    }
    // The order's answer is JSON, its failure too.
    let failure: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = failure.get("message").and_then(Value::as_str).unwrap_or(text.trim_end());
    Err(Failure::Failed(format!("{} answered {}: {message}", page.node, page.code)))
}

async fn order(client: &Client, what: &str) -> Result<String, Failure> {
    page_of(&client.order(&format!("/admin/cluster/{what}")).await?)
}

fn parse(body: &str) -> Result<Value, Failure> {
    serde_json::from_str(body)
        .map_err(|error| Failure::Failed(format!("the node's answer is no JSON: {error}")))
}

/// The answer itself with `--json`, `text` otherwise.
fn shown(body: &str, matches: &ArgMatches, text: &str) -> String {
    if matches.get_flag("json") { body.to_owned() } else { text.to_owned() }
}

fn number(body: &Value, pointer: &str) -> u64 {
    body.pointer(pointer).and_then(Value::as_u64).unwrap_or_default()
}

fn plan_lines(body: &Value, room: &[String]) -> String {
    let lines = body.pointer("/plan/lines").and_then(Value::as_array);
    let base = number(body, "/plan/on_epoch");
    let mut text = format!("planned on epoch {base}:\n");
    let lines = lines.into_iter().flatten().filter_map(Value::as_str);
    for line in lines.chain(room.iter().map(String::as_str)) {
        text.extend(["  ", line, "\n"]);
    }
    let moves = body.pointer("/plan/moves").is_some_and(Value::is_object);
    let what = if moves { "data moves" } else { "no data moves" };
    text + &format!("{what}; kvorum cluster apply {base} applies it\n")
}

/// The free space of each node that gets partitions, a line each: the nodes are asked themselves.
async fn room_lines(body: &Value, matches: &ArgMatches) -> Result<Vec<String>, Failure> {
    let members = body.pointer("/plan/moves/members").and_then(Value::as_array);
    let gaining = members.into_iter().flatten().filter(|member| number(member, "/gains") > 0);
    let needed: BTreeMap<String, Option<u64>> = gaining
        .filter_map(|member| Some((member.get("url")?.as_str()?.to_owned(), member.get("bytes")?.as_u64())))
        .collect();
    let urls: Vec<String> = needed.keys().cloned().collect();
    let asked = cluster::ask(&urls, matches, false).await?;
    let line = |asked: &cluster::Asked| {
        let url = &asked.url;
        let free = asked.status.as_ref().ok().and_then(|status| status.pointer("/disk/free_bytes")?.as_u64());
        let needed = needed.get(url).copied().flatten();
        match (free, needed) {
            (None, _) => format!("{url} does not say how much space it has free"),
            (Some(free), Some(needed)) if needed > free => {
                format!("{url} has {} free, TOO LITTLE for about {}", bytes(free), bytes(needed))
            }
            (Some(free), Some(needed)) => {
                format!("{url} has {} free for about {}", bytes(free), bytes(needed))
            }
            (Some(free), None) => format!("{url} has {} free", bytes(free)),
        }
    };
    Ok(asked.iter().map(line).collect())
}

/// Plans to go on without the lost members, and does so if the epoch is named.
async fn force(client: &Client, matches: &ArgMatches) -> Result<String, Failure> {
    let lost: Vec<&String> = matches.get_many("lost").into_iter().flatten().collect();
    let query = lost.iter().fold("change=force".to_owned(), |query, node| query + "&lost=" + &encoded(node));
    let body = order(client, &format!("plan?{query}")).await?;
    let planned = parse(&body)?;
    let base = number(&planned, "/plan/on_epoch");
    match matches.get_one::<u64>("epoch") {
        None => Ok(shown(&body, matches, &force_lines(&planned, &lost))),
        Some(epoch) if *epoch != base => Err(Failure::Failed(format!(
            "the cluster is at epoch {base}, not at epoch {epoch}: look again at what force would do"
        ))),
        Some(_) => {
            let body = order(client, &format!("apply?epoch={base}")).await?;
            Ok(shown(&body, matches, &adopted_line(&parse(&body)?)))
        }
    }
}

fn force_lines(body: &Value, lost: &[&String]) -> String {
    let lines = body.pointer("/plan/lines").and_then(Value::as_array);
    let base = number(body, "/plan/on_epoch");
    let mut text = format!("at epoch {base}:\n");
    for line in lines.into_iter().flatten().filter_map(Value::as_str) {
        text.extend(["  ", line, "\n"]);
    }
    let lost = lost.iter().map(|node| node.as_str()).collect::<Vec<_>>().join(" ");
    text + &format!("nothing has changed yet; kvorum cluster force --lost {lost} --epoch {base} does it\n")
}

fn cancelled_line(body: &Value) -> String {
    let is_changing = body.get("change").is_some_and(Value::is_object);
    if is_changing { changing_line(body) + "\n" } else { "no plan is kept\n".to_owned() }
}

fn adopted_line(body: &Value) -> String {
    let (epoch, level) = (number(body, "/epoch"), number(body, "/feature_level"));
    format!("the cluster is at epoch {epoch}, feature level {level}\n")
}

/// Names the stores first, where that has not been done.
async fn upgrade(client: &Client) -> Result<(), Failure> {
    let shown = parse(&page_of(&client.cluster(true).await?)?)?;
    let changes: &[&str] = if number(&shown, "/epoch") == 0 { &["name", "upgrade"] } else { &["upgrade"] };
    for change in changes {
        let planned = plan_soon(client, change).await?;
        order(client, &format!("apply?epoch={}", number(&planned, "/plan/on_epoch"))).await?;
    }
    Ok(())
}

/// Plans a change; right after another one, the members may need a moment to catch up.
async fn plan_soon(client: &Client, change: &str) -> Result<Value, Failure> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        match order(client, &format!("plan?change={change}")).await {
            Ok(body) => return parse(&body),
            Err(failure) if Instant::now() >= until => return Err(failure),
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

async fn wait(client: &Client, matches: &ArgMatches) -> Result<String, Failure> {
    let until = Instant::now() + timeout_of(matches);
    loop {
        let body = page_of(&client.cluster(true).await?)?;
        let shown_body = parse(&body)?;
        let behind = behind(&shown_body);
        let is_changing = shown_body.get("change").is_some_and(Value::is_object);
        let lacking = lacking(&shown_body);
        if behind.is_empty() && !is_changing && lacking.is_empty() {
            return Ok(shown(&body, matches, &adopted_line(&shown_body)));
        }
        if Instant::now() >= until {
            let epoch = number(&shown_body, "/epoch");
            if is_changing {
                return Err(Failure::Failed(changing_line(&shown_body)));
            }
            if behind.is_empty() {
                return Err(Failure::Failed(format!("lacking records: {}", lacking.join(", "))));
            }
            return Err(Failure::Failed(format!(
                "not all members work with epoch {epoch}: {}",
                behind.join(", ")
            )));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// How far the change under way is, and what it waits for.
fn changing_line(body: &Value) -> String {
    let (begin, end) = (number(body, "/change/begin"), number(body, "/change/end"));
    let partitions = number(body, "/change/partitions");
    let waits = body.pointer("/change/waits").and_then(Value::as_array).into_iter().flatten();
    let waits: Vec<&str> = waits.filter_map(Value::as_str).collect();
    let is_back = body.pointer("/change/heading").is_some_and(|heading| heading == "back");
    let heading = if is_back { "goes back: it was cancelled" } else { "is under way" };
    let waits = if waits.is_empty() { String::new() } else { format!("; {}", waits.join("; ")) };
    let left = body.pointer("/change/left_seconds").and_then(Value::as_f64);
    let left = left.map(|left| format!(", about {left:.0} s left")).unwrap_or_default();
    format!("a change {heading}, at partitions {begin} to {end} of {partitions}{left}{waits}")
}

/// The members that are marked as lacking records.
fn lacking(body: &Value) -> Vec<String> {
    let members = body.get("members").and_then(Value::as_array).into_iter().flatten();
    let marked = members.filter(|member| member.get("lacks") == Some(&Value::Bool(true)));
    marked.filter_map(|member| member.get("url")?.as_str().map(str::to_owned)).collect()
}

/// The members that do not work with the epoch of the node that was asked.
fn behind(body: &Value) -> Vec<String> {
    let epoch = body.get("epoch");
    let members = body.get("members").and_then(Value::as_array).into_iter().flatten();
    let others = members.filter(|member| member.get("epoch") != epoch);
    let line = |member: &Value| {
        let at = member.get("epoch").and_then(Value::as_u64);
        let url = member.get("url").and_then(Value::as_str).unwrap_or("?");
        at.map_or_else(|| format!("{url} has not said its epoch"), |at| format!("{url} is at epoch {at}"))
    };
    others.map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that is behind is named with its epoch, one that has said nothing as such.
    #[test]
    fn members_behind_are_named() {
        let body = serde_json::json!({"epoch": 2, "feature_level": 1, "members": [
            {"url": "http://a", "epoch": 2}, {"url": "http://b", "epoch": 1}, {"url": "http://c", "epoch": null}
        ]});
        assert_eq!(behind(&body), ["http://b is at epoch 1", "http://c has not said its epoch"]);
        assert_eq!(adopted_line(&body), "the cluster is at epoch 2, feature level 1\n");
    }

    #[test]
    fn plans_are_printed_with_what_applies_them() {
        let body = serde_json::json!({"plan": {"on_epoch": 4, "lines": ["one"]}});
        let text = plan_lines(&body, &["http://c:1 has 9 GiB free".to_owned()]);
        assert_eq!(
            text,
            "planned on epoch 4:\n  one\n  http://c:1 has 9 GiB free\nno data moves; kvorum cluster apply 4 applies it\n"
        );
        let body = serde_json::json!({"plan": {"on_epoch": 4, "lines": [], "moves": {"copies": 3}}});
        assert_eq!(
            plan_lines(&body, &[]),
            "planned on epoch 4:\ndata moves; kvorum cluster apply 4 applies it\n"
        );
    }

    /// What is lost is printed with the command that gives it up.
    #[test]
    fn forcing_is_printed_before_it_is_done() {
        let body = serde_json::json!({"plan": {"on_epoch": 4, "lines": ["one"]}});
        let (first, second) = ("http://a:1".to_owned(), "00ff".to_owned());
        assert_eq!(
            force_lines(&body, &[&first, &second]),
            "at epoch 4:\n  one\nnothing has changed yet; kvorum cluster force --lost http://a:1 00ff --epoch 4 does it\n"
        );
    }

    /// A change under way says where it is going, how far it is, and what it waits for.
    #[test]
    fn changes_under_way_are_told() {
        let body = |heading: &str, waits: &[&str]| serde_json::json!({"change": {"heading": heading, "begin": 256, "end": 512, "partitions": 4096, "waits": waits}});
        assert_eq!(
            changing_line(&body("forwards", &["waiting for a", "waiting for b"])),
            "a change is under way, at partitions 256 to 512 of 4096; waiting for a; waiting for b"
        );
        let mut paced = body("forwards", &[]);
        paced["change"]["left_seconds"] = 41.6.into();
        assert_eq!(
            changing_line(&paced),
            "a change is under way, at partitions 256 to 512 of 4096, about 42 s left"
        );
        assert_eq!(
            cancelled_line(&body("back", &[])),
            "a change goes back: it was cancelled, at partitions 256 to 512 of 4096\n"
        );
        assert_eq!(cancelled_line(&serde_json::json!({"change": null})), "no plan is kept\n");
    }

    /// The words of each change become the parameters of its request.
    #[test]
    fn plans_are_asked_for() {
        let check = |words: &str, expect: &str| {
            let words = ["plan"].into_iter().chain(words.split(' '));
            let matches = plan_command().try_get_matches_from(words).unwrap();
            let (change, matches) = matches.subcommand().unwrap();
            assert_eq!(query_of(change, matches), expect);
        };
        let (a, d) = ("http%3A%2F%2Fa%3A1", "http%3A%2F%2Fd%3A1");
        check("name", "change=name");
        // `kvorum dev` starts a node for it.
        check("add", "change=add");
        check("add http://d:1", &format!("change=add&url={d}"));
        check("add http://d:1 --zone b --weight 2", &format!("change=add&url={d}&zone=b&weight=2"));
        check("remove 00ff", "change=remove&node=00ff");
        check("replace http://a:1 http://d:1", &format!("change=replace&node={a}&url={d}"));
        check("weight http://a:1 3", &format!("change=weight&node={a}&weight=3"));
        check("remove 00ff --window 4096", "change=remove&node=00ff&window=4096");
        check("zone http://a:1 b", &format!("change=zone&node={a}&zone=b"));
        for bad in ["grow", "weight http://a:1 0", "remove a --zone b"] {
            let words = ["plan"].into_iter().chain(bad.split(' '));
            assert!(plan_command().try_get_matches_from(words).is_err(), "{bad}");
        }
    }
}
