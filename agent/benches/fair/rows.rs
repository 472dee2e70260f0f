//! The rows of the benchmark: what sources send, and how much the server can take, over time.

use testbed::overload::Group;

/// The server behind the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Udp,
    Nginx,
}

impl Server {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::Nginx => "nginx",
        }
    }

    /// Requests for a page that a source sends at once.
    const fn page(self) -> usize {
        match self {
            Self::Udp => 30,
            Self::Nginx => 6,
        }
    }

    /// Seconds until 500 sources at twice their share can be told apart: at one connection a second, it takes some.
    const fn told_apart(self) -> f64 {
        match self {
            Self::Udp => 1.0,
            Self::Nginx => 7.0,
        }
    }
}

/// Groups of sources, by their places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    Polite,
    Heavy,
    Many,
    Nat,
    Crawler,
    Pages,
    Others,
}

/// Of the polite sources together, in capacities.
pub const POLITE: f64 = 0.05;
/// The sources of a row with many.
pub const MANY: usize = 500;

/// The groups in the order of [`Who`].
pub fn groups(server: Server) -> Vec<Group> {
    vec![
        Group::new(2, 50).in_random_order(),
        Group::new(1, 5),
        Group::new(8, MANY).in_random_order(),
        Group::new(4, 1),
        Group::new(5, 1),
        Group::new(3, 50).at_once(server.page()).in_random_order(),
        Group::new(6, 50).in_random_order(),
    ]
}

/// A change at some second.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// A group sends so many capacities.
    Load(Who, f64),
    /// The server can take this part of its capacity.
    Capacity(f64),
}

/// The kind of a row: its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// No overload: this load in capacities.
    Peace(f64),
    /// Five sources send so many capacities, beside so many busy processes.
    Heavy { times: f64, busy: usize },
    /// 500 sources send twice their share.
    Many,
    /// The capacity halves and returns under twice the capacity of five sources.
    Follows,
    /// Ten times the capacity for 0.3 s in so many seconds.
    Pulses(f64),
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub kind: Kind,
    /// Measured with `--quick`, for a shorter time.
    pub is_quick: bool,
}

const fn row(name: &'static str, kind: Kind, is_quick: bool) -> Row {
    Row {
        name,
        kind,
        is_quick,
    }
}

pub const ROWS: [Row; 9] = [
    row("no overload, 85 %", Kind::Peace(0.85), true),
    row("no overload, 92 %", Kind::Peace(0.92), false),
    row(
        "5 sources, 10 times",
        Kind::Heavy {
            times: 10.0,
            busy: 0,
        },
        true,
    ),
    row(
        "5 sources, 2 times",
        Kind::Heavy {
            times: 2.0,
            busy: 0,
        },
        false,
    ),
    row("500 sources, twice their share", Kind::Many, false),
    row("capacity halves and returns", Kind::Follows, false),
    row("pulses of 0.3 s every 2 s", Kind::Pulses(2.0), false),
    row("pulses of 0.3 s every 6 s", Kind::Pulses(6.0), false),
    row(
        "5 sources, 10 times, 2 busy processes",
        Kind::Heavy {
            times: 10.0,
            busy: 2,
        },
        false,
    ),
];

/// The course of a row, in seconds since its sources began.
#[derive(Clone, Debug)]
pub struct Course {
    pub changes: Vec<(f64, Change)>,
    pub onset: f64,
    /// Until then, polite units and the capacity are measured; without a course of its own, sources end then.
    pub end: f64,
    /// From when on shares are compared.
    pub shares_from: f64,
    /// When the capacity changes down and up again.
    pub follows: Option<(f64, f64)>,
}

/// The onset, at the end of a bin: changes are made there.
const ONSET: f64 = 1.05;
const PULSE: f64 = 0.3;

impl Row {
    pub fn course(&self, server: Server, is_quick: bool) -> Course {
        let mut changes = vec![(0.0, Change::Load(Who::Polite, POLITE))];
        let (mut onset, mut follows) = (ONSET, None);
        let end = match self.kind {
            Kind::Peace(load) => {
                let all = [
                    (Who::Nat, 0.60),
                    (Who::Crawler, 0.10),
                    (Who::Pages, 0.10),
                    (Who::Others, load - POLITE - 0.80),
                ];
                changes.extend(all.map(|(who, load)| (0.0, Change::Load(who, load))));
                onset = 0.0;
                if is_quick { 3.0 } else { 8.0 }
            }
            Kind::Heavy { times, .. } => {
                let end = ONSET + if is_quick { 4.0 } else { 7.0 };
                changes.push((ONSET, Change::Load(Who::Heavy, times)));
                changes.push((end, Change::Load(Who::Heavy, 0.0)));
                end
            }
            Kind::Many => {
                let end = ONSET + server.told_apart() + 6.0;
                changes.push((ONSET, Change::Load(Who::Many, 2.0)));
                changes.push((end, Change::Load(Who::Many, 0.0)));
                end
            }
            Kind::Follows => {
                let (down, up, end) = (ONSET + 3.0, ONSET + 6.0, ONSET + 9.0);
                follows = Some((down, up));
                changes.push((ONSET, Change::Load(Who::Heavy, 2.0)));
                changes.push((down, Change::Capacity(0.5)));
                changes.push((up, Change::Capacity(1.0)));
                changes.push((end, Change::Load(Who::Heavy, 0.0)));
                end
            }
            Kind::Pulses(period) => {
                let count = if period > 3.0 { 4 } else { 6 };
                for nth in 0..count {
                    let at = ONSET + f64::from(nth) * period;
                    changes.push((at, Change::Load(Who::Heavy, 10.0)));
                    changes.push((at + PULSE, Change::Load(Who::Heavy, 0.0)));
                }
                ONSET + f64::from(count) * period
            }
        };
        Course {
            changes,
            onset,
            end,
            shares_from: onset + server.told_apart(),
            follows,
        }
    }

    /// The number of a hand-written limit for each source, in capacities: nine tenths of the capacity, shared by those who send
    /// too much. Where nobody does, it is the number against five.
    pub fn best(&self) -> f64 {
        let number = if self.kind == Kind::Many { MANY } else { 5 };
        0.9 / number as f64
    }

    /// Whether it ends with the limit off.
    pub fn ends_off(&self) -> bool {
        matches!(self.kind, Kind::Heavy { .. } | Kind::Many | Kind::Follows)
    }
}
