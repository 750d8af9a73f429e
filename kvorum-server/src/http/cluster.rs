//! `/admin/cluster`: the configuration of the cluster that the node works with, and the orders that change it.

use super::body::ReplyBody;
use super::error::Failure;
use super::handler::{Service, ThreadState, accepts, vary_by_accept};
use super::target::{TargetError, digits, parameters, parse_nothing, set, unknown};
use crate::authority;
use crate::coordinator::{ApplyPlanError, Coordinator, PlanningError, ProposeError, Shared};
use crate::membership::{self, ChangeKind, ChangeOrder, MembersOrder, Newcomer, Pace, Planned};
use crate::verdict;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use kvorum_core::ClusterId;
use kvorum_core::agreement::Epoch;
use kvorum_core::configuration::{
    ClusterMember, Configuration, Heading, MemberState, Phase, Preview, Side, Slot, WINDOW_PARTITIONS_DEFAULT,
};
use kvorum_core::topology::NODES_MAX;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

/// How long a node that was just started may take until this one has met it.
const MEET_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is shown.
struct View {
    configuration: Arc<Configuration>,
    /// The epoch that each member works with, as it said last; none if it has said nothing.
    epochs: Vec<Option<Epoch>>,
    planned: Option<Planned>,
    /// How far the change under way has come.
    pace: Option<Pace>,
    /// What the change under way waits for.
    waits: Vec<String>,
    /// How the stores and settings of members differ from it.
    differences: Vec<String>,
}

impl View {
    fn of(shared: &Shared) -> Self {
        let configuration = shared.cluster.configuration();
        let epoch_of = |member: &ClusterMember| {
            let index = shared.cluster.slot_of(member.id)?;
            if index == shared.cluster.me() {
                return Some(configuration.epoch);
            }
            Some(shared.configurations.said(index).adopted?.epoch)
        };
        let epochs: Vec<Option<Epoch>> = configuration.members.iter().map(epoch_of).collect();
        // A plan that was applied is kept for an order that is repeated, and not shown.
        let planned = shared.configurations.planned();
        let planned = planned.filter(|planned| planned.next.epoch > configuration.epoch);
        let (pace, waits) = (shared.background.steps.pace(), shared.background.steps.waits());
        let differs = |member: &ClusterMember| {
            let cluster = &shared.cluster;
            let (store, stated) = (cluster.store_of(member.slot), cluster.place_settings_of(member.slot));
            membership::differences(member, store, &stated)
        };
        let differences = configuration.members.iter().flat_map(differs).collect();
        Self { configuration, epochs, planned, pace, waits, differences }
    }
}

/// Shows the configuration.
pub(super) fn show<B>(service: &Service, request: &Request<B>) -> Result<Response<ReplyBody>, Failure> {
    parse_nothing(request.uri().query())?;
    Ok(answer(&service.rooms()?.shared, request))
}

/// Plans a change, and shows it.
pub(super) async fn plan<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let mut order = parse_plan(request.uri().query())?;
    let coordinator = state.coordinator()?;
    if let ChangeOrder::Members(MembersOrder::Add(new), _) = &mut order
        && new.url.is_empty()
    {
        new.url = another(state, coordinator).await.map_err(|error| Failure::cannot_plan(&error))?;
    }
    coordinator.changes().plan(&order).await.map_err(|error| Failure::cannot_plan(&error))?;
    Ok(answer(coordinator.shared(), request))
}

/// Has the process start another node, and waits until this node has met it. Gives its URL.
async fn another(state: &ThreadState, coordinator: &Coordinator) -> Result<String, PlanningError> {
    let another = state.service.another.get().ok_or(PlanningError::NoUrl)?;
    coordinator.changes().check_another()?;
    let url = another.start().await.map_err(|reason| PlanningError::NotStarted { reason })?;
    let met = async {
        while !coordinator.changes().has_met(&url) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    // Where the time is over, the plan says that it was not met.
    let _ = tokio::time::timeout(MEET_TIMEOUT, met).await;
    Ok(url)
}

/// Applies the plan that was made on an epoch, and answers once it is decided.
pub(super) async fn apply<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    let epoch = parse_apply(request.uri().query())?;
    let coordinator = state.coordinator()?;
    coordinator.changes().apply(epoch).await.map_err(|error| match error {
        ApplyPlanError::Propose(ProposeError::Unknown { .. }) => Failure::not_decided(&error),
        error => Failure::no_plan(&error),
    })?;
    Ok(answer(coordinator.shared(), request))
}

/// Drops the plan, and turns the change under way round, if there is one.
pub(super) async fn cancel<B>(
    state: &ThreadState,
    request: &Request<B>,
) -> Result<Response<ReplyBody>, Failure> {
    parse_nothing(request.uri().query())?;
    let coordinator = state.coordinator()?;
    coordinator.shared().configurations.drop_plan();
    coordinator.changes().cancel().await.map_err(|error| match error {
        error @ ProposeError::Unknown { .. } => Failure::not_decided(&ApplyPlanError::Propose(error)),
        error => Failure::no_plan(&ApplyPlanError::Propose(error)),
    })?;
    Ok(answer(coordinator.shared(), request))
}

/// The parameters of a plan.
#[derive(Default)]
struct PlanQuery {
    change: Option<ChangeKind>,
    node: Option<String>,
    url: Option<String>,
    zone: Option<String>,
    weight: Option<u32>,
    window: Option<u32>,
    /// May be there several times.
    lost: Vec<String>,
}

const CHANGES: &str = "name, upgrade, add, remove, replace, weight, zone, store or force";
const MEMBER_ALLOWED: &str = "the URL or id of a member";
const URL_ALLOWED: &str = "a URL such as http://10.0.0.1:8080";
const ZONE_ALLOWED: &str = "up to 64 visible ASCII characters";
const WINDOW_ALLOWED: &str = "a number of partitions from 256 to 65536";
const WEIGHT_ALLOWED: &str = "a number from 1 to 4294967295";

/// The most lost members that an order names: all of both sides of a change.
const LOST_LEN_MAX: usize = 2 * NODES_MAX;

/// A member as an operator names it. An id is no URL; a URL may be written in several ways.
fn member_named(node: &str) -> Option<String> {
    let url = authority::node_url(node).unwrap_or_else(|| node.to_owned());
    (!node.is_empty()).then_some(url)
}

impl PlanQuery {
    fn read(query: Option<&str>) -> Result<Self, TargetError> {
        let mut read = Self::default();
        for parameter in parameters(query) {
            let (name, value) = parameter?;
            let text = std::str::from_utf8(&value).ok();
            let bad = |name, allowed| TargetError::BadValue { name, allowed };
            match &*name {
                b"change" => {
                    let kind = text.and_then(ChangeKind::of_name);
                    set(&mut read.change, "change", kind.ok_or_else(|| bad("change", CHANGES))?)?;
                }
                b"node" => {
                    let node = text.and_then(member_named);
                    set(&mut read.node, "node", node.ok_or_else(|| bad("node", MEMBER_ALLOWED))?)?;
                }
                b"lost" => {
                    let node = text.and_then(member_named).filter(|_| read.lost.len() < LOST_LEN_MAX);
                    read.lost.push(node.ok_or_else(|| bad("lost", MEMBER_ALLOWED))?);
                }
                b"url" => {
                    let url = text.and_then(authority::node_url);
                    set(&mut read.url, "url", url.ok_or_else(|| bad("url", URL_ALLOWED))?)?;
                }
                b"zone" => {
                    let zone = text.and_then(|zone| membership::parse_zone(zone).ok());
                    set(&mut read.zone, "zone", zone.ok_or_else(|| bad("zone", ZONE_ALLOWED))?)?;
                }
                b"weight" => {
                    let weight = text.and_then(|weight| membership::parse_weight(weight).ok());
                    set(&mut read.weight, "weight", weight.ok_or_else(|| bad("weight", WEIGHT_ALLOWED))?)?;
                }
                b"window" => {
                    let allowed = WINDOW_PARTITIONS_DEFAULT..=1 << 16;
                    let window = digits(&value).filter(|window| allowed.contains(window));
                    set(&mut read.window, "window", window.ok_or_else(|| bad("window", WINDOW_ALLOWED))?)?;
                }
                _ => return Err(unknown(&name, "change, node, url, zone, weight, window, lost")),
            }
        }
        Ok(read)
    }

    /// Refuses the parameters that are left, which the change does not have.
    fn end(self, known: &'static str) -> Result<(), TargetError> {
        let Self { change: _, node, url, zone, weight, window, lost } = self;
        let left = [
            ("node", node.is_some()),
            ("url", url.is_some()),
            ("zone", zone.is_some()),
            ("weight", weight.is_some()),
            ("window", window.is_some()),
            ("lost", !lost.is_empty()),
        ];
        match left.into_iter().find(|(_, is_given)| *is_given) {
            Some((name, _)) => Err(unknown(name.as_bytes(), known)),
            None => Ok(()),
        }
    }

    fn newcomer(&mut self) -> Result<Newcomer, TargetError> {
        let url = self.url.take().ok_or(TargetError::Missing { name: "url" })?;
        Ok(Newcomer { url, zone: self.zone.take(), weight: self.weight.take() })
    }

    fn node(&mut self) -> Result<String, TargetError> {
        self.node.take().ok_or(TargetError::Missing { name: "node" })
    }
}

/// Reads the query of a plan: the change.
pub(super) fn parse_plan(query: Option<&str>) -> Result<ChangeOrder, TargetError> {
    let mut read = PlanQuery::read(query)?;
    let kind = read.change.ok_or(TargetError::Missing { name: "change" })?;
    let (order, known) = match kind {
        ChangeKind::Name | ChangeKind::Upgrade => {
            let order = if kind == ChangeKind::Name { ChangeOrder::Name } else { ChangeOrder::Upgrade };
            read.end("change")?;
            return Ok(order);
        }
        ChangeKind::Force => {
            let lost = std::mem::take(&mut read.lost);
            read.end("change, lost")?;
            return if lost.is_empty() {
                Err(TargetError::Missing { name: "lost" })
            } else {
                Ok(ChangeOrder::Force { lost })
            };
        }
        ChangeKind::Add => {
            let (url, zone, weight) =
                (read.url.take().unwrap_or_default(), read.zone.take(), read.weight.take());
            (MembersOrder::Add(Newcomer { url, zone, weight }), "change, url, zone, weight, window")
        }
        ChangeKind::Remove => (MembersOrder::Remove { node: read.node()? }, "change, node, window"),
        ChangeKind::Store => {
            let order = ChangeOrder::Store { node: read.node()? };
            read.end("change, node")?;
            return Ok(order);
        }
        // By itself: it has lost its store.
        ChangeKind::Replace if read.node.is_some() && read.node == read.url => {
            let order = ChangeOrder::Store { node: read.node()? };
            read.url = None;
            read.end("change, node, url")?;
            return Ok(order);
        }
        ChangeKind::Replace => {
            let order = MembersOrder::Replace { node: read.node()?, by: read.newcomer()? };
            (order, "change, node, url, zone, weight, window")
        }
        ChangeKind::Weight => {
            let weight = read.weight.take().ok_or(TargetError::Missing { name: "weight" })?;
            (MembersOrder::Weight { node: read.node()?, weight }, "change, node, weight, window")
        }
        ChangeKind::Zone => {
            let zone = read.zone.take().ok_or(TargetError::Missing { name: "zone" })?;
            (MembersOrder::Zone { node: read.node()?, zone }, "change, node, zone, window")
        }
    };
    let order = ChangeOrder::Members(order, read.window.take().unwrap_or(WINDOW_PARTITIONS_DEFAULT));
    read.end(known)?;
    Ok(order)
}

/// Reads the query of an order to apply a plan: the epoch that it was made on.
pub(super) fn parse_apply(query: Option<&str>) -> Result<Epoch, TargetError> {
    let mut epoch = None;
    for parameter in parameters(query) {
        let (name, value) = parameter?;
        match &*name {
            b"epoch" => {
                let allowed = "the epoch that the plan was made on";
                let read = digits(&value).ok_or(TargetError::BadValue { name: "epoch", allowed })?;
                set(&mut epoch, "epoch", Epoch(read))?;
            }
            _ => return Err(unknown(&name, "epoch")),
        }
    }
    epoch.ok_or(TargetError::Missing { name: "epoch" })
}

fn answer<B>(shared: &Shared, request: &Request<B>) -> Response<ReplyBody> {
    let json = accepts(request.headers(), "application/json");
    let body = render(&View::of(shared), json);
    let mut response = Response::new(ReplyBody::full(Bytes::from(body)));
    let content_type = if json { "application/json" } else { "text/plain; charset=utf-8" };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    vary_by_accept(response.headers_mut());
    response
}

/// The configuration: a line for it, one for each member and some for the plan, or one JSON object.
fn render(view: &View, json: bool) -> String {
    let View { configuration, epochs, planned, pace, waits, differences } = view;
    let Configuration { epoch, phase, cluster, feature_level, members, .. } = &**configuration;
    let is_known = *cluster != ClusterId::STAND_IN;
    let known = |text: String| is_known.then_some(text);
    let (cluster, hash) = (known(cluster.to_string()), known(configuration.hash().to_string()));
    let members = members.iter().zip(epochs);
    if json {
        let plan = planned.as_ref().map(|planned| {
            serde_json::json!({
                "change": planned.kind.name(),
                "on_epoch": planned.base().0,
                "hash": planned.next.hash().to_string(),
                "lines": planned.lines.iter().cloned().chain(line_of_bytes(planned)).collect::<Vec<_>>(),
                "moves": planned.moves.as_ref().map(|moves| moves_of(moves, planned)),
            })
        });
        let body = serde_json::json!({
            "epoch": epoch.0,
            "phase": phase.to_string(),
            "cluster_id": cluster,
            "hash": hash,
            "feature_level": feature_level,
            "members": members.map(|(member, epoch)| row(member, *epoch)).collect::<Vec<_>>(),
            "change": change_of(configuration, *pace, waits),
            "differences": differences,
            "plan": plan,
        });
        return format!("{body}\n");
    }
    let [cluster, hash] = [cluster, hash].map(|text| text.unwrap_or_else(|| "unknown".to_owned()));
    let mut page = format!("epoch {epoch} {phase} level {feature_level} cluster {cluster} hash {hash}\n");
    for (member, epoch) in members {
        let ClusterMember { id, slot: Slot(slot), url, zone, weight, state, lacks, store: _ } = member;
        let lacks = if *lacks { " lacks" } else { "" };
        let (state, epoch) =
            (name_of(state), epoch.map_or_else(|| "unknown".to_owned(), |epoch| epoch.to_string()));
        let _ = writeln!(
            page,
            "member {slot} {url} id {id} zone {zone:?} weight {weight} {state}{lacks} epoch {epoch}"
        );
    }
    for line in differences {
        let _ = writeln!(page, "{line}");
    }
    if let Some(pace) = pace {
        let _ = writeln!(page, "{}", line_of_pace(pace, 1 << configuration.partition_bits));
    }
    for wait in waits {
        let _ = writeln!(page, "{wait}");
    }
    if let Some(planned) = planned {
        let (kind, base) = (planned.kind.name(), planned.base());
        let _ = writeln!(page, "plan {kind} on epoch {base}");
        planned.lines.iter().cloned().chain(line_of_bytes(planned)).for_each(|line| {
            let _ = writeln!(page, "plan: {line}");
        });
    }
    page
}

/// How many bytes a plan sends.
fn line_of_bytes(planned: &Planned) -> Option<String> {
    let copies = planned.moves.as_ref()?.copies;
    let bytes = planned.copy_bytes?.saturating_mul(copies.into());
    Some(format!(
        "about {} are sent, by what this node stores; kvorum status shows the free space of each node",
        verdict::bytes(bytes)
    ))
}

/// How far a change has come, and how long the rest takes.
fn line_of_pace(pace: &Pace, partitions: u32) -> String {
    let Pace { moved, watched, since, left } = *pace;
    let seconds = watched.as_secs();
    let left = left.map_or_else(
        || "nothing has moved yet".to_owned(),
        |left| format!("{since} of them in {seconds} s: at this rate {} s are left", left.as_secs()),
    );
    format!("{moved} of {partitions} partitions are read where they belong afterwards; {left}")
}

/// The change under way; null where there is none.
fn change_of(configuration: &Configuration, pace: Option<Pace>, waits: &[String]) -> serde_json::Value {
    let Phase::Joint { reads, is_filled, window, .. } = configuration.phase else {
        return serde_json::Value::Null;
    };
    let heading = match configuration.phase.heading() {
        Some(Heading::Back) => "back",
        _ => "forwards",
    };
    let reads = if reads == Side::Old { "old" } else { "new" };
    serde_json::json!({
        "heading": heading,
        "reads": reads,
        "filled": is_filled,
        "begin": window.begin,
        "end": window.end,
        "partitions": 1_u32 << configuration.partition_bits,
        "moved": pace.map(|pace| pace.moved),
        "watched_seconds": pace.map(|pace| pace.watched.as_secs_f64()),
        "left_seconds": pace.and_then(|pace| pace.left).map(|left| left.as_secs_f64()),
        "waits": waits,
    })
}

/// What a plan moves.
fn moves_of(moves: &Preview, planned: &Planned) -> serde_json::Value {
    let url = |id| planned.next.member(id).map(|member| member.url.as_str());
    let members: Vec<_> = (moves.members.iter())
        .map(|member| {
            serde_json::json!({
                "id": member.id.to_string(),
                "url": url(member.id),
                "before": member.before,
                "after": member.after,
                "gains": member.gains,
                "loses": member.loses,
                "bytes": planned.copy_bytes.map(|bytes| bytes.saturating_mul(member.gains.into())),
            })
        })
        .collect();
    serde_json::json!({
        "from": moves.from,
        "partitions": moves.partitions,
        "moving": moves.moving,
        "copies": moves.copies,
        "copies_least": moves.copies_least,
        "copies_before": moves.copies_before,
        "copies_joint": moves.copies_joint,
        "copies_after": moves.copies_after,
        "windows": moves.windows,
        "epochs": moves.epochs,
        "members": members,
    })
}

fn row(member: &ClusterMember, epoch: Option<Epoch>) -> serde_json::Value {
    serde_json::json!({
        "id": member.id.to_string(),
        "slot": member.slot.0,
        "url": member.url,
        "zone": member.zone,
        "weight": member.weight,
        "store": member.store.map(|store| format!("{store:032x}")),
        "state": name_of(&member.state),
        "lacks": member.lacks,
        "epoch": epoch.map(|epoch| epoch.0),
    })
}

fn name_of(state: &MemberState) -> &'static str {
    match state {
        MemberState::In => "in",
        MemberState::Joining => "joining",
        MemberState::Leaving => "leaving",
        MemberState::Changing { .. } => "changing",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvorum_core::{Placement, Topology};

    /// Both forms have every member, what a change makes of it, and the plan.
    #[test]
    fn members_are_shown() {
        let topology = Topology::of_urls(["http://a:1", "https://b:1"]).unwrap();
        let cluster = ClusterId::new(0xc1).unwrap();
        let mut shown = Configuration::genesis(cluster, &topology, &Placement::initial(&topology));
        (shown.members[1].state, shown.members[1].lacks) = (MemberState::Leaving, true);
        shown.members[1].store = Some(7);
        let view = |configuration: Configuration, planned| View {
            configuration: Arc::new(configuration),
            epochs: vec![Some(Epoch(3)), None],
            planned,
            pace: None,
            waits: Vec::new(),
            differences: vec!["http://a:1 differs".to_owned()],
        };
        let page = render(&view(shown.clone(), None), false);
        let head = format!("epoch 0 stable level 0 cluster {cluster} hash {}\n", shown.hash());
        assert!(page.starts_with(&head), "{page}");
        for (slot, member) in shown.members.iter().enumerate() {
            assert!(page.contains(&format!("\nmember {slot} {} id {} ", member.url, member.id)), "{page}");
        }
        assert!(page.contains(" zone \"\" weight 1 in epoch 3\n"), "{page}");
        let end = " zone \"\" weight 1 leaving lacks epoch unknown\nhttp://a:1 differs\n";
        assert!(page.ends_with(end), "{page}");
        let body: serde_json::Value =
            serde_json::from_str(&render(&view(shown.clone(), None), true)).unwrap();
        assert_eq!((&body["epoch"], &body["phase"]), (&0.into(), &"stable".into()));
        assert_eq!(body["hash"], shown.hash().to_string());
        assert_eq!(body["differences"][0], "http://a:1 differs");
        let unknown = Configuration { cluster: ClusterId::STAND_IN, ..shown.clone() };
        let page = render(&view(unknown.clone(), None), false);
        assert!(page.starts_with("epoch 0 stable level 0 cluster unknown hash unknown\n"));
        let none: serde_json::Value = serde_json::from_str(&render(&view(unknown, None), true)).unwrap();
        assert!(none["hash"].is_null() && none["cluster_id"].is_null() && none["plan"].is_null());
        assert_eq!(body["members"][0]["store"], serde_json::Value::Null);
        assert_eq!(body["members"][1]["store"], format!("{:032x}", 7));
        assert_eq!(
            (&body["members"][1]["state"], &body["members"][1]["lacks"], &body["members"][0]["epoch"]),
            (&"leaving".into(), &true.into(), &3.into())
        );
        let next = Arc::new(Configuration { epoch: Epoch(1), ..shown.clone() });
        let planned = Planned {
            kind: ChangeKind::Name,
            next,
            lines: vec!["all".to_owned()],
            moves: None,
            copy_bytes: None,
        };
        let page = render(&view(shown.clone(), Some(planned.clone())), false);
        assert!(page.ends_with("\nplan name on epoch 0\nplan: all\n"), "{page}");
        let body: serde_json::Value =
            serde_json::from_str(&render(&view(shown, Some(planned)), true)).unwrap();
        assert_eq!((&body["plan"]["change"], &body["plan"]["on_epoch"]), (&"name".into(), &0.into()));
    }

    /// A plan names its change, an order to apply it the epoch; what is not built yet is refused.
    #[test]
    fn orders_are_read() {
        assert_eq!(parse_plan(Some("change=upgrade")), Ok(ChangeOrder::Upgrade));
        let store = || Ok(ChangeOrder::Store { node: "http://a:1".to_owned() });
        assert_eq!(parse_plan(Some("change=store&node=http://a:1")), store());
        assert_eq!(parse_plan(Some("change=replace&node=http://a:1/&url=http://A:1")), store());
        let members = |query| match parse_plan(Some(query)) {
            Ok(ChangeOrder::Members(order, WINDOW_PARTITIONS_DEFAULT)) => order,
            other => panic!("{query}: {other:?}"),
        };
        let (url, node) = ("http://d:1".to_owned(), "http://a:1".to_owned());
        let new = Newcomer { url, zone: Some("b".into()), weight: Some(2) };
        assert_eq!(members("change=add&url=http://d:1&zone=b&weight=2"), MembersOrder::Add(new.clone()));
        let plain = Newcomer { zone: None, weight: None, ..new };
        // The process of the node is to start one.
        assert_eq!(
            members("change=add"),
            MembersOrder::Add(Newcomer { url: String::new(), ..plain.clone() })
        );
        assert_eq!(
            members("change=replace&node=http%3A%2F%2FA:1/&url=http://d:1"),
            MembersOrder::Replace { node: node.clone(), by: plain }
        );
        assert_eq!(members("change=remove&node=00ff"), MembersOrder::Remove { node: "00ff".into() });
        assert_eq!(
            members("weight=3&change=weight&node=http://a:1"),
            MembersOrder::Weight { node: node.clone(), weight: 3 }
        );
        assert_eq!(
            members("change=zone&node=http://a:1&zone="),
            MembersOrder::Zone { node, zone: String::new() }
        );
        let lost = vec!["http://a:1".to_owned(), "00ff".to_owned()];
        assert_eq!(
            parse_plan(Some("change=force&lost=http://A:1/&lost=00ff")),
            Ok(ChangeOrder::Force { lost })
        );
        assert_eq!(parse_apply(Some("epoch=12")), Ok(Epoch(12)));
        for bad in [
            "",
            "change=weight",
            "change=weight&node=a",
            "change=weight&node=a&weight=0",
            "change=zone&node=a&zone=a%20b",
            "change=add&url=d",
            "change=add&url=http://d:1&node=a",
            "change=remove",
            "change=replace&node=a",
            "change=store",
            "change=store&node=a&window=256",
            "change=replace&node=http://a:1&url=http://a:1&weight=2",
            "change=name&zone=a",
            "change=name&change=name",
            "change=remove&node=a&window=255",
            "change=name&window=256",
            "change=force",
            "change=force&lost=",
            "change=force&lost=a&node=b",
            "change=remove&node=a&lost=b",
            "change=grow",
            "level=1",
        ] {
            assert!(parse_plan(Some(bad)).is_err(), "{bad}");
        }
        for bad in ["", "epoch=", "epoch=-1", "epoch=1&epoch=1", "at=1"] {
            assert!(parse_apply(Some(bad)).is_err(), "{bad}");
        }
    }
}
