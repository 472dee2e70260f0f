//! The CPU time of a connection that is opened and closed: what a limit with `concurrent` adds, at the SYN and at each of the
//! socket's changes of state. One thread is the client and the server, and the connection crosses a veth pair.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use aya::programs::{ProgramInfo, loaded_programs};
use aya::sys::{Stats, enable_stats};
use config::policy::Attach;
use nix::sys::socket::{setsockopt, sockopt};
use testbed::measure::{CpuTime, Series, pin};

use crate::flood::CPU;
use crate::network::{Lane, RECEIVER, Sender};
use crate::policies::{HOT, limit};
use crate::programs::Weir;
use crate::rivals::weir;

const PART: &str = "connections";
const PORT: u16 = 80;
/// Connections of a sample, and those before it.
const CONNECTIONS: u32 = 3_000;
const BEFORE: u32 = 500;

/// Of the tracepoint `inet_sock_set_state`.
const PROGRAMS: [&str; 2] = ["weir_socket", "weir_socket_too"];

/// The limits on the server's interface.
const LIMITS: [(&str, Limit); 3] = [
    ("nothing", Limit::None),
    ("weir, a rate", Limit::Rate),
    ("weir, concurrent", Limit::Concurrent),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Limit {
    None,
    Rate,
    Concurrent,
}

impl Limit {
    fn load(self, lane: &Lane) -> Result<Option<Weir>> {
        let tables = match self {
            Self::None => return Ok(None),
            Self::Rate => limit("a", HOT, "unit = \"connections\""),
            Self::Concurrent => {
                "[[limit]]\nname = \"a\"\nunit = \"connections\"\nconcurrent = 65535\n".to_owned()
            }
        };
        weir(lane, &tables, Attach::Native).map(Some)
    }
}

/// Measures all limits that have `only` in their names.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    let sender = Sender::new()?;
    sender.enter()?;
    pin(CPU)?;
    let lane = sender.lane()?;
    sender.add_address(&lane)?;
    lane.route_by_neighbour()?;
    let server = lane
        .inside(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?
        .context("binding the server")?;
    let new = |case, by| Series::new(PART, case, by, "ns a connection");
    let mut series: Vec<(Limit, Series)> = LIMITS
        .into_iter()
        .filter(|(name, _)| name.contains(only))
        .map(|(name, limit)| (limit, new("opened and closed", name)))
        .collect();
    let mut counting = new("programs of the tracepoint", LIMITS[2].0);
    for _ in 0..rounds {
        for (limit, series) in &mut series {
            // Loaded for each sample: the programs of `concurrent` are those of all connections of this host.
            let others = programs();
            let weir = limit.load(&lane)?;
            let sample = sample(&server).with_context(|| series.by.clone())?;
            series.samples.push(sample);
            if *limit == Limit::Concurrent {
                counting.samples.push(time_of_programs(&server, &others)?);
            }
            if let Some(weir) = weir {
                weir.datapath.detach()?;
            }
        }
    }
    Ok(series
        .into_iter()
        .map(|(_, series)| series)
        .chain([counting])
        .collect())
}

/// The loaded programs for changes of sockets' states, of this and of other agents.
fn programs() -> Vec<ProgramInfo> {
    let is_one = |program: &ProgramInfo| {
        program
            .name_as_str()
            .is_some_and(|name| PROGRAMS.contains(&name))
    };
    loaded_programs()
        .filter_map(Result::ok)
        .filter(is_one)
        .collect()
}

/// Nanoseconds a connection, by the kernel's statistics of programs.
fn time_of_programs(server: &TcpListener, others: &[ProgramInfo]) -> Result<f64> {
    let _counting = enable_stats(Stats::RunTime).context("counting the time of programs")?;
    let time = || -> Duration {
        let is_ours = |program: &ProgramInfo| others.iter().all(|other| other.id() != program.id());
        programs()
            .iter()
            .filter(|program| is_ours(program))
            .map(ProgramInfo::run_time)
            .sum()
    };
    let before = time();
    cycle(server, CONNECTIONS)?;
    Ok((time() - before).as_nanos() as f64 / f64::from(CONNECTIONS))
}

/// Nanoseconds a connection.
fn sample(server: &TcpListener) -> Result<f64> {
    cycle(server, BEFORE)?;
    let cpu = CpuTime::of(CPU);
    let before = cpu.now()?;
    cycle(server, CONNECTIONS)?;
    Ok((cpu.now()? - before).as_nanos() as f64 / f64::from(CONNECTIONS))
}

/// Opens connections, and closes each by a reset, after which neither side remembers it.
fn cycle(server: &TcpListener, connections: u32) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let address = SocketAddr::from((RECEIVER, PORT));
    for _ in 0..connections {
        let client = TcpStream::connect_timeout(&address, PATIENCE).context("connecting")?;
        let (accepted, _) = server.accept().context("accepting")?;
        setsockopt(
            &accepted,
            sockopt::Linger,
            &libc::linger {
                l_onoff: 1,
                l_linger: 0,
            },
        )?;
        drop(accepted);
        drop(client);
    }
    Ok(())
}
