//! Flows of the last minute, and their sparklines.

use std::collections::{HashMap, VecDeque};

/// The length in seconds.
const MINUTE: f64 = 60.0;
/// The most flows of a limit: keys that query the agent at once make them shorter than a second.
const MOST: usize = 600;
/// A cell without packets, and those with more and more of them.
const ZERO: char = '▁';
const LEVELS: [char; 7] = ['▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A flow in units per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Flow {
    /// Passed.
    pub passed: f64,
    /// Refused, or would have been refused.
    pub throttled: f64,
}

/// A flow between two documents, by the agent's clock in seconds.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: f64,
    to: f64,
    flow: Flow,
}

/// The flows of the last minute.
#[derive(Clone, Debug, Default)]
pub struct Flows(VecDeque<Span>);

impl Flows {
    fn add(&mut self, from: f64, to: f64, flow: Flow) {
        self.0.push_back(Span { from, to, flow });
        while self.0.len() > MOST || self.0.front().is_some_and(|span| span.to <= to - MINUTE) {
            self.0.pop_front();
        }
    }

    /// The highest of the minute; 0 without any.
    #[must_use]
    pub fn highest(&self, of: fn(&Flow) -> f64) -> f64 {
        self.0.iter().map(|span| of(&span.flow)).fold(0.0, f64::max)
    }

    /// The minute in this many cells, each with the highest flow of its part, of a scale that ends at `highest`. Parts
    /// before the first document are empty.
    #[must_use]
    pub fn sparkline(&self, cells: usize, highest: f64, of: fn(&Flow) -> f64) -> String {
        let Some(last) = self.0.back() else {
            return " ".repeat(cells);
        };
        let length = MINUTE / cells.max(1) as f64;
        let cell = |nth: usize| {
            let from = last.to - MINUTE + nth as f64 * length;
            // A thousandth for rounding.
            let within = |span: &&Span| span.to > from + 1e-3 && span.from < from + length - 1e-3;
            let found = self
                .0
                .iter()
                .filter(within)
                .map(|span| of(&span.flow))
                .reduce(f64::max);
            found.map_or(' ', |flow| level(flow, highest))
        };
        (0..cells).map(cell).collect()
    }
}

fn level(flow: f64, highest: f64) -> char {
    if flow <= 0.0 || highest <= 0.0 {
        return ZERO;
    }
    let nth = (flow / highest * LEVELS.len() as f64).ceil() as usize;
    LEVELS[nth.clamp(1, LEVELS.len()) - 1]
}

/// The flows of all packets and of each limit.
#[derive(Clone, Debug, Default)]
pub struct History {
    all: Flows,
    limits: HashMap<String, Flows>,
}

impl History {
    /// Adds the flows between two documents. Limits without a flow are dropped.
    pub fn add(&mut self, from: f64, to: f64, all: Flow, limits: &HashMap<String, Flow>) {
        self.all.add(from, to, all);
        self.limits.retain(|name, _| limits.contains_key(name));
        for (name, flow) in limits {
            self.limits
                .entry(name.clone())
                .or_default()
                .add(from, to, *flow);
        }
    }

    /// Of all packets.
    #[must_use]
    pub const fn all(&self) -> &Flows {
        &self.all
    }

    /// Of one limit; `None` before the second document with it.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&Flows> {
        self.limits.get(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(flow: &Flow) -> f64 {
        flow.passed
    }

    fn flows(rates: &[(f64, f64)]) -> Flows {
        let mut flows = Flows::default();
        let mut now = 100.0;
        for (seconds, rate) in rates {
            flows.add(
                now,
                now + seconds,
                Flow {
                    passed: *rate,
                    throttled: 0.0,
                },
            );
            now += seconds;
        }
        flows
    }

    #[test]
    fn cells_have_the_highest_flow_of_their_part_and_zero_is_not_nothing() {
        let found = flows(&[(1.0, 0.0), (1.0, 1.0), (1.0, 700.0), (1.0, 350.0)]);
        assert_eq!(
            found.sparkline(60, 700.0, passed),
            format!("{}▁▂█▅", " ".repeat(56))
        );
        // Two seconds a cell.
        assert_eq!(
            found.sparkline(30, 700.0, passed),
            format!("{}▂█", " ".repeat(28))
        );
        assert_eq!(found.highest(passed), 700.0);
        assert_eq!(Flows::default().sparkline(4, 0.0, passed), "    ");
        assert_eq!(flows(&[(60.0, 0.0)]).sparkline(4, 0.0, passed), "▁▁▁▁");
    }

    #[test]
    fn only_the_last_minute_is_kept_and_a_pause_is_one_flow() {
        let mut rates = vec![(1.0, 900.0); 30];
        rates.extend([(45.0, 100.0), (1.0, 200.0)]);
        let found = flows(&rates);
        assert_eq!(
            found.sparkline(60, 900.0, passed),
            format!("{}{}▃", "█".repeat(14), "▂".repeat(45))
        );
        let many = flows(&[(0.001, 1.0); 100_000]);
        assert!(many.0.len() <= MOST);
    }

    #[test]
    fn removed_limits_are_forgotten() {
        let mut history = History::default();
        let flow = Flow {
            passed: 1.0,
            throttled: 0.0,
        };
        history.add(0.0, 1.0, flow, &HashMap::from([("a".to_owned(), flow)]));
        history.add(1.0, 2.0, flow, &HashMap::from([("b".to_owned(), flow)]));
        assert!(history.limit("a").is_none() && history.limit("b").is_some());
        assert_eq!(history.all().sparkline(60, 1.0, passed).trim_start(), "██");
    }
}
