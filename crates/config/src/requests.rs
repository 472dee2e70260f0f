//! Limits on requests with `[decide]` and `[[request]]`: reads them, and checks them together.

use common::rate_limiter::Policy;
use host::PROGRAM;

use super::class;
use super::limit_rules;
use super::policy::{AgentConfig, Class, Decide, Endpoint, Limit, RequestCost, RequestLimit};
use super::report::Problems;
use super::request_notes::{self, Whole};
use super::schema::{Located, read, read_all, read_one, tables};
use super::table::Table;
use super::words::Scope;

/// The most memory that a limit's keys may need, in GiB.
const LARGEST_STORE_GIB: u64 = 16;

/// Limits on packets.
pub type PacketLimits<'t> = Vec<Located<'t, Limit>>;
/// Limits on requests.
pub type RequestLimits<'t> = Vec<Located<'t, RequestLimit>>;

/// All limits, by scope.
pub fn limits<'t>(root: &mut Table<'t, '_>) -> (PacketLimits<'t>, RequestLimits<'t>) {
    let (mut packets, mut requests) = (Vec::new(), Vec::new());
    for at in tables(root, "limit") {
        let table = at.get_ref().as_table();
        let scope = table.and_then(|table| table.get(Limit::SCOPE.name)?.get_ref().as_str());
        let request = Scope::Request.to_string();
        if scope.is_some_and(|scope| scope.eq_ignore_ascii_case(&request)) {
            requests.extend(read(at, root.problems));
        } else {
            packets.extend(read(at, root.problems).map(|mut limit| {
                limit_rules::check(&mut limit, root.problems);
                limit
            }));
        }
    }
    (packets, requests)
}

/// Reads `[decide]`, `[[request]]` and the limits on requests, and checks them together.
pub fn read_decide(
    root: &mut Table<'_, '_>,
    limits: RequestLimits<'_>,
    packet_limits: &[Located<'_, Limit>],
    classes: &[Located<'_, Class>],
    agent: &AgentConfig,
) -> Decide {
    let read = read_one::<Decide>(root);
    let endpoint = read.as_ref().and_then(|read| {
        let written = read.find(&Decide::HTTP).or(read.find(&Decide::GRPC));
        written.map(|at| at.span())
    });
    let mut decide = read.map_or_else(Default::default, |read| read.table);
    let requests = read_all::<RequestCost>(root);
    for (nth, read) in requests.iter().enumerate() {
        if requests[..nth]
            .iter()
            .any(|other| other.table.name == read.table.name)
        {
            let message = format!("duplicate request name {:?}", read.table.name);
            root.problems.conflict(
                read.span_of(&RequestCost::NAME),
                message,
                "give one of them another name",
            );
        }
    }
    if let (Some(request), true) = (requests.first(), limits.is_empty()) {
        let help = "add a [[limit]] with scope = \"request\"";
        root.problems.warning(
            request.span_of(&RequestCost::NAME),
            "[[request]] has no effect: no limit has scope = \"request\"",
            help,
        );
    }
    let multipliers = class::multipliers(classes);
    for (nth, read) in limits.iter().enumerate() {
        let name = &read.table.name;
        let is_twice = limits[..nth].iter().any(|other| other.table.name == *name)
            || packet_limits.iter().any(|other| other.table.name == *name);
        if is_twice {
            let help = "give one of them another name: it is the label in counters";
            root.problems.conflict(
                read.span_of(&RequestLimit::NAME),
                format!("duplicate limit name {name:?}"),
                help,
            );
        }
        let policies = multipliers.iter().flat_map(|multiplier| {
            [
                read.table.policies(*multiplier),
                read.table.policies_above(*multiplier),
            ]
        });
        match policies.collect::<Result<Vec<_>, _>>() {
            Ok(policies) => {
                let words: usize = policies.iter().flatten().map(Policy::words).sum();
                let keys = decide.max_keys.unwrap_or(1);
                let bytes = words as u64 * 8 * u64::from(keys);
                if bytes >> 30 >= LARGEST_STORE_GIB {
                    let message = format!(
                        "{keys} keys of limit {name:?} could take {} GiB of memory",
                        bytes >> 30
                    );
                    let help = "lower [decide] max_keys, or set algorithm = \"sliding-window\"";
                    root.problems
                        .error(read.span_of(&RequestLimit::NAME), message, help);
                }
            }
            Err(error) => root.problems.error(
                read.span_of(&RequestLimit::NAME),
                format!("limit {name:?} cannot be enforced for every class: {error}"),
                "lower the rate, or the class's multiplier",
            ),
        }
        if read.table.escalate.is_some() && agent.interfaces.is_empty() {
            let message = "escalate requires an interface on which the kernel bans addresses";
            root.problems.error(
                read.span_of(&RequestLimit::NAME),
                message,
                "add [agent] interfaces = [\"eth0\"]",
            );
        }
        if nth == 0 && decide.http.is_none() && decide.grpc.is_none() {
            let help = "add [decide] http = \"unix:/run/weir/decide.sock\"";
            let message = format!(
                "applications cannot query this limit, only `{PROGRAM} decide` can: [decide] has no http and no grpc"
            );
            root.problems
                .warning(read.span_of(&RequestLimit::NAME), message, help);
        }
    }
    decide.follows_fleet = root.value("fleet").is_some();
    decide.takes_loads = packet_limits.iter().any(|read| read.table.takes_load());
    check_loads(packet_limits, &decide, root.problems);
    let packet_limits: Vec<&str> = packet_limits
        .iter()
        .map(|read| read.table.name.as_str())
        .collect();
    let whole = Whole {
        decide: &decide,
        endpoint,
        requests: &requests,
        limits: &limits,
        packet_limits: &packet_limits,
        classes,
        multipliers: &multipliers,
        agent,
    };
    request_notes::check(&whole, root.problems);
    decide.requests = requests.into_iter().map(|read| read.table).collect();
    decide.limits = limits.into_iter().map(|read| read.table).collect();
    decide
}

/// Reports limits whose service has no socket on which it could report its load.
fn check_loads(limits: &[Located<'_, Limit>], decide: &Decide, problems: &mut Problems) {
    if matches!(decide.http, Some(Endpoint::Unix(_))) {
        return;
    }
    for read in limits.iter().filter(|read| read.table.takes_load()) {
        let message = "\"load\" in signals requires a Unix socket of [decide], which shows the user that reports";
        let help = "add http = \"unix:/run/weir/decide.sock\" to [decide]";
        problems.error(read.span_of(&Limit::FAIR), message, help);
    }
}
