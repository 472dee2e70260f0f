//! CrowdSec's own bouncer for nftables, beside Weir as a bouncer of the same local API.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testbed::lapi::{KEY, Lapi};
use testbed::process::memory;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::support::Network;
use crate::traffic::{PORT, burst, socket, udp_from, until_refused};

pub const TESTS: &[Test] = tests![weir_enforces_what_the_bouncer_of_crowdsec_itself_does];

const HOUR: Duration = Duration::from_secs(3_600);
/// Both pull changes at this interval.
const UPDATE: &str = "500ms";
const DECISIONS: u32 = 60_000;

/// The directory into which CrowdSec's packages were unpacked.
fn program() -> Option<PathBuf> {
    let program =
        PathBuf::from(std::env::var_os("WEIR_CROWDSEC")?).join("usr/bin/crowdsec-firewall-bouncer");
    program.exists().then_some(program)
}

/// Whether the bouncer is there.
pub fn is_there() -> bool {
    program().is_some()
}

/// CrowdSec's bouncer in the server's namespace.
struct Bouncer(Child);

impl Bouncer {
    fn start(network: &Network, lapi: &Lapi) -> Self {
        let config = network.folder.path().join("bouncer.yaml");
        let text = format!(
            "mode: nftables\nupdate_frequency: {UPDATE}\nlog_mode: stdout\nlog_level: error\napi_url: {}/\napi_key: {KEY}\n\
             disable_ipv6: true\ndeny_action: DROP\nsupported_decisions_types: [ban]\nnftables_hooks: [input]\nnftables:\n  \
             ipv4: {{ enabled: true, set-only: false, table: crowdsec, chain: crowdsec-chain, priority: -10 }}\n  \
             ipv6: {{ enabled: false }}\n",
            lapi.url()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(program().unwrap());
        command.arg("-c").arg(&config).stdout(Stdio::null());
        Self(network.in_server(|| command.spawn()).unwrap())
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Figures of a bouncer: both get the same decisions.
struct Figures {
    /// From a decision to the first packet that is refused: the median of eight.
    one: Duration,
    /// The same for the last of 60,000 decisions.
    many: Duration,
    /// The resident memory of its process afterwards, in bytes.
    resident: u64,
}

fn measure(network: &Network, lapi: &Lapi, process: u32) -> Figures {
    wait("the first pull", || lapi.pulls().0 >= 1);
    let receiver = socket(network);
    let refused_after = |last: u8| {
        let start = Instant::now();
        lapi.ban(&format!("10.77.0.{last}"), HOUR);
        until_refused(network, &receiver, last) - start
    };
    let mut times: Vec<Duration> = (20..28).map(refused_after).collect();
    times.sort_unstable();
    for number in 0..DECISIONS {
        lapi.ban(&Ipv4Addr::from(0x0b00_0000 + 2 * number).to_string(), HOUR);
    }
    let many = refused_after(7);
    drop(receiver);
    let receiver = network.receiver(PORT);
    burst(network, &[udp_from(7), udp_from(20), udp_from(8)], 30);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[20], counts[8]), (0, 0, 10));
    Figures {
        one: times[times.len() / 2],
        many,
        resident: memory(process, "VmRSS"),
    }
}

fn weir_enforces_what_the_bouncer_of_crowdsec_itself_does() {
    let theirs = {
        let network = Network::new();
        let lapi = network.in_server(Lapi::new);
        let bouncer = Bouncer::start(&network, &lapi);
        measure(&network, &lapi, bouncer.0.id())
    };
    let network = Network::new();
    let lapi = network.in_server(Lapi::new);
    let config = format!(
        "[crowdsec]\nurl = {:?}\napi_key = {KEY:?}\nupdate = {UPDATE:?}\n",
        lapi.url()
    );
    let agent = network.start("", &config);
    let ours = measure(&network, &lapi, agent.process());
    for (name, figures) in [("the bouncer for nftables", &theirs), ("Weir", &ours)] {
        println!(
            "{name}: a decision is enforced after {:.2} s (median), the last of {DECISIONS} after {:.2} s; {:.1} MiB resident",
            figures.one.as_secs_f64(),
            figures.many.as_secs_f64(),
            figures.resident as f64 / f64::from(1 << 20)
        );
    }
}
