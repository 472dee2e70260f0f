use std::collections::BTreeMap;
use std::path::Path;

use api::decide::Answer;
use common::limiter::Rate;
use common::rate_limiter::Policy;
use proptest::prelude::*;

use super::super::tiers::{self, Tiers};
use super::super::{Edge, Offence};
use super::*;

const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLISECOND;
/// The most waiting requests per key.
const PER_KEY: usize = 3;

struct NoEdge;

impl Edge for NoEdge {
    fn escalate(&self, _: Offence) {}
}

fn config(lines: &str) -> config::policy::Config {
    let text = format!(
        "[decide]\nmax_waiting = 5\nmax_waiting_per_key = {PER_KEY}\n\
         [[limit]]\nname = \"jobs\"\nscope = \"request\"\nkey = [\"user\"]\n{lines}\n"
    );
    config::parse(Path::new("limits.toml"), &text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

fn engine(lines: &str) -> Engine {
    Engine::new(&config(lines), Arc::new(NoEdge)).unwrap()
}

fn question(user: &str, cost: u64, wait: u64) -> Question {
    Question {
        limit: "jobs".to_owned(),
        key: BTreeMap::from([("user".to_owned(), user.to_owned())]),
        cost: Some(cost as i64),
        wait: (wait > 0).then(|| format!("{wait}ms").parse().unwrap()),
        ..Question::default()
    }
}

/// The queues of an engine, on a clock that the test advances.
struct Harness {
    engine: Engine,
    now: u64,
    /// (number, ID, the reply's channel).
    open: Vec<(usize, u64, oneshot::Receiver<Answered>)>,
    /// The outcome of each question: whether it passed, and when.
    told: BTreeMap<usize, (bool, u64)>,
}

impl Harness {
    fn new(lines: &str) -> Self {
        Self::under(&config(lines))
    }

    fn under(config: &config::policy::Config) -> Self {
        let engine = Engine::new(config, Arc::new(NoEdge)).unwrap();
        Self {
            engine,
            now: SECOND,
            open: Vec::new(),
            told: BTreeMap::new(),
        }
    }

    fn ask(&mut self, number: usize, question: &Question) {
        let charge = self.engine.charge(question).unwrap();
        let (sender, receiver) = oneshot::channel();
        let waiting = Arc::clone(self.engine.waiting());
        match waiting
            .lock()
            .enter(&self.engine, question, charge, self.now, true, sender)
        {
            Entered::Decided(decided) => {
                self.told.insert(number, (decided.answer.allowed, self.now));
            }
            Entered::Waits(id) => self.open.push((number, id, receiver)),
        }
        self.hear();
    }

    fn leave(&mut self, number: usize) {
        if let Some(at) = self.open.iter().position(|(open, ..)| *open == number) {
            let (_, id, _) = self.open.remove(at);
            self.engine.waiting().leave(id);
        }
    }

    fn advance(&mut self) {
        self.now += MILLISECOND;
        let waiting = Arc::clone(self.engine.waiting());
        waiting.lock().serve(&self.engine, self.now);
        self.hear();
    }

    fn hear(&mut self) {
        let (now, told) = (self.now, &mut self.told);
        self.open
            .retain_mut(|(number, _, receiver)| match receiver.try_recv() {
                Ok(answer) => {
                    told.insert(*number, (answer.unwrap().answer.allowed, now));
                    false
                }
                Err(_) => true,
            });
    }
}

/// A simple model of the queue: it retries every millisecond, and forecasts by trying on a copy.
#[derive(Clone)]
struct Model {
    tiers: Tiers,
    words: BTreeMap<usize, Vec<u64>>,
    /// (number, cost, deadline) by key.
    queues: BTreeMap<usize, Vec<(usize, u64, u64)>>,
    told: BTreeMap<usize, (bool, u64)>,
    now: u64,
}

impl Model {
    fn charge(&mut self, key: usize, cost: u64) -> bool {
        let (tiers, now) = (&self.tiers, self.now);
        let words = self.words.entry(key).or_insert_with(|| {
            let mut words = vec![0; tiers.iter().map(Policy::words).sum()];
            tiers::open(tiers, &mut words, now);
            words
        });
        tiers::charge(tiers, words, now, cost)
    }

    fn ask(&mut self, number: usize, key: usize, cost: u64, wait: u64) {
        let waiting: usize = self.queues.values().map(Vec::len).sum();
        // A cost of 0 overtakes nothing.
        if (cost == 0 || self.queues.entry(key).or_default().is_empty()) && self.charge(key, cost) {
            self.told.insert(number, (true, self.now));
            return;
        }
        let until = self.now + wait * MILLISECOND;
        let mut copy = self.clone();
        copy.queues
            .entry(key)
            .or_default()
            .push((number, cost, until));
        while !copy.told.contains_key(&number) && copy.now < until {
            copy.advance();
        }
        if copy.told.contains_key(&number) && self.queues[&key].len() < PER_KEY && waiting < 5 {
            self.queues
                .entry(key)
                .or_default()
                .push((number, cost, until));
        } else {
            self.told.insert(number, (false, self.now));
        }
    }

    fn leave(&mut self, number: usize) {
        self.queues
            .values_mut()
            .for_each(|queue| queue.retain(|(other, ..)| *other != number));
        self.serve();
    }

    fn advance(&mut self) {
        self.now += MILLISECOND;
        self.serve();
    }

    fn serve(&mut self) {
        for key in self.queues.keys().copied().collect::<Vec<_>>() {
            while let Some((number, cost, _)) = self.queues[&key].first().copied() {
                if !self.charge(key, cost) {
                    break;
                }
                self.queues.entry(key).or_default().remove(0);
                self.told.insert(number, (true, self.now));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Ask { key: usize, cost: u64, wait: u64 },
    Leave(usize),
    Pass(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..3, 0u64..7, prop_oneof![Just(0), 1u64..120])
            .prop_map(|(key, cost, wait)| Step::Ask { key, cost, wait }),
        1 => (0usize..40).prop_map(Step::Leave),
        3 => (1u8..40).prop_map(Step::Pass),
    ]
}

proptest! {
    /// The queue and the model agree for all sequences of arrivals, cancellations and pauses, to the millisecond, which
    /// is the model's step.
    #[test]
    fn the_line_is_the_obvious_queue(
        limit in 0usize..7,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let per = |count: u64, milliseconds: u64| Rate { count, per_nanoseconds: milliseconds * MILLISECOND };
        let (lines, tiers) = match limit {
            0 => ("rate = \"100/s\"\nburst = 5", vec![Policy::token_bucket(per(100, 1_000), 5)]),
            1 => (
                "algorithm = \"leaky-bucket\"\nrate = \"100/s\"\nburst = 4",
                vec![Policy::leaky_bucket(per(100, 1_000), 4)],
            ),
            // Its end is rounded up to a multiple of 1,024 ns: to a whole millisecond at most.
            2 => (
                "algorithm = \"fixed-window\"\nrate = \"5/64ms\"",
                vec![Policy::fixed_window(Rate { count: 5, per_nanoseconds: 64 * MILLISECOND - 1_024 }).unwrap()],
            ),
            3 => ("algorithm = \"sliding-window\"\nrate = \"5/64ms\"", vec![Policy::sliding_window(per(5, 64)).unwrap()]),
            // A log has room again a tick after its window: at a whole millisecond.
            4 => ("algorithm = \"sliding-log\"\nrate = \"5/64ms\"", vec![Policy::sliding_log(Rate { count: 5, per_nanoseconds: 64 * MILLISECOND - 1 }).unwrap()]),
            5 => (
                "rate = \"100/s\"\nburst = 5\ntiers = [\"7/128ms\"]",
                vec![Policy::token_bucket(per(100, 1_000), 5), Policy::token_bucket(per(7, 128), 7)],
            ),
            _ => (
                "rate = \"50/s\"\nburst = 3\nthrottle = { soft = \"100%\" }",
                vec![Policy::token_bucket(per(50, 1_000), 3), Policy::token_bucket(per(100, 1_000), 6)],
            ),
        };
        let tiers = if limit == 6 { Tiers::new(vec![tiers[0]], vec![tiers[1]]) } else { tiers.into() };
        let mut config = config(lines);
        config.decide.limits[0].rates.rate.per_nanoseconds -= match limit {
            2 => 1_024,
            4 => 1,
            _ => 0,
        };
        let mut harness = Harness::under(&config);
        prop_assert_eq!(harness.engine.limits[0].stores[0].tiers(), &tiers);
        let mut model =
            Model { tiers, words: BTreeMap::new(), queues: BTreeMap::new(), told: BTreeMap::new(), now: SECOND };
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Ask { key, cost, wait } => {
                    harness.ask(number, &question(&key.to_string(), cost, wait));
                    model.ask(number, key, cost, wait);
                }
                Step::Leave(number) => {
                    harness.leave(number);
                    model.leave(number);
                    // The thread does this at once.
                    let waiting = Arc::clone(harness.engine.waiting());
                    waiting.lock().serve(&harness.engine, harness.now);
                    harness.hear();
                }
                Step::Pass(milliseconds) => {
                    for _ in 0..milliseconds {
                        harness.advance();
                        model.advance();
                    }
                }
            }
            prop_assert_eq!(&harness.told, &model.told);
            let in_line: usize = model.queues.values().map(Vec::len).sum();
            prop_assert_eq!(harness.engine.waiting().len(), in_line);
            prop_assert_eq!(harness.engine.limits[0].line.status().waiting, in_line as u64);
        }
    }
}

#[test]
fn the_line_is_bounded_per_key_and_in_all_and_counted() {
    let mut harness = Harness::new("rate = \"1/s\"\nburst = 1");
    for (number, user) in ["a", "a", "a", "a", "a", "b", "b", "b", "b"]
        .into_iter()
        .enumerate()
    {
        harness.ask(number, &question(user, 1, 60_000));
    }
    // One of each passes; three requests of a would exceed the wait; two of b make five in total.
    assert_eq!(
        harness
            .told
            .values()
            .filter(|(allowed, _)| *allowed)
            .count(),
        2
    );
    let status = harness.engine.limits[0].line.status();
    assert_eq!((status.waiting, status.full), (5, 2));
    harness.leave(1);
    harness.ask(20, &question("b", 1, 60_000));
    let status = harness.engine.limits[0].line.status();
    assert_eq!((status.waiting, status.left, status.full), (5, 1, 2));
}

#[test]
fn long_questions_wait_within_the_memory_for_all() {
    const LENGTH: usize = 250_000;
    const ROOM: usize = (64 << 20) / LENGTH;
    let text = "[decide]\nmax_waiting = 1_000\n\
                [[limit]]\nname = \"jobs\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1/s\"\nburst = 1\n";
    let config = config::parse(Path::new("limits.toml"), text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    let mut harness = Harness::under(&config);
    let user = |number: usize| format!("{number}{}", "x".repeat(LENGTH));
    // The first of each user passes, the second one waits.
    for number in 0..2 * (ROOM + 1) {
        harness.ask(number, &question(&user(number / 2), 1, 60_000));
    }
    let status = harness.engine.limits[0].line.status();
    assert_eq!((status.waiting, status.full), (ROOM as u64, 1));
    harness.leave(1);
    harness.ask(2 * (ROOM + 1), &question(&user(ROOM), 1, 60_000));
    let status = harness.engine.limits[0].line.status();
    assert_eq!((status.waiting, status.full), (ROOM as u64, 1));
}

#[test]
fn waiting_requests_keep_their_order_or_are_refused_at_once() {
    let mut harness = Harness::new("rate = \"10/s\"\nburst = 10");
    harness.ask(0, &question("a", 10, 0));
    harness.ask(1, &question("a", 5, 1_000));
    (0..100).for_each(|_| harness.advance());
    // There is one credit, and the request ahead takes it.
    harness.ask(2, &question("a", 1, 0));
    harness.ask(3, &question("a", 1, 499));
    harness.ask(4, &question("a", 1, 500));
    let at = harness.now;
    assert_eq!(
        (
            harness.told.get(&2),
            harness.told.get(&3),
            harness.told.get(&4)
        ),
        (Some(&(false, at)), Some(&(false, at)), None)
    );
    let charge = harness.engine.charge(&question("a", 1, 0)).unwrap();
    let lines = harness.engine.waiting().lock();
    let refused = harness.engine.behind(&lines, &charge, harness.now).unwrap();
    // After five units of the first and one of the second.
    assert_eq!(
        refused.outcome.retry_after,
        Some(Duration::from_millis(600))
    );
    assert_eq!(refused.outcome.remaining, 0);
    drop(lines);
    // Nor does a request that charges several limits.
    assert!(!harness.engine.decide_together(&[charge], harness.now)[0].allowed);
    (0..500).for_each(|_| harness.advance());
    assert_eq!(
        (harness.told.get(&1), harness.told.get(&4)),
        (
            Some(&(true, at + 400 * MILLISECOND)),
            Some(&(true, at + 500 * MILLISECOND))
        )
    );
}

#[test]
fn another_config_is_waited_for_instead() {
    let first = engine("rate = \"1/h\"\nburst = 5");
    let waiting = Arc::clone(first.waiting());
    let current = Arc::new(Current::from_pointee(first));
    let now: Now = || SECOND;
    let ask = |cost, wait| {
        let asked = waiting.decide(&current, &[question("a", cost, wait)], now);
        asked.unwrap().pop().unwrap()
    };
    assert!(matches!(
        ask(5, 1_000),
        Decision::Made(Decided {
            answer: Answer { allowed: true, .. },
            ..
        })
    ));
    // Nothing passes within an hour.
    assert!(matches!(
        ask(1, 60_000),
        Decision::Made(Decided {
            answer: Answer { allowed: false, .. },
            ..
        })
    ));
    let replace = |lines: &str| {
        let (engine, moves) = current.load().after(&config(lines)).unwrap();
        moves.carry_out(SECOND);
        waiting.replace(&current, engine, SECOND);
    };
    replace("rate = \"10/s\"\nburst = 5");
    let [one, two] = [ask(1, 1_000), ask(1, 200)];
    assert!(matches!(
        (&one, &two),
        (Decision::Waits(_), Decision::Waits(_))
    ));
    // Slower: the second one can no longer pass in time.
    replace("rate = \"5/s\"\nburst = 5");
    assert!(!two.wait().unwrap().answer.allowed);
    assert_eq!(waiting.len(), 1);
    // Under the new name, the limit does not exist.
    let (engine, moves) = current
        .load()
        .after(
            &config::parse(
                Path::new("x"),
                "[[limit]]\nname = \"other\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1/s\"\n",
            )
            .unwrap()
            .config,
        )
        .unwrap();
    moves.carry_out(SECOND);
    waiting.replace(&current, engine, SECOND);
    assert!(matches!(one.wait(), Err(DecideError::UnknownLimit { .. })));
    assert!(waiting.is_empty());
}

#[test]
fn an_open_limit_and_a_reset_are_noticed_at_once() {
    for does in ["reset", "open"] {
        let engine = engine(
            "rate = \"60/h\"\nburst = 60\ncluster = true\n[cluster]\nstore = \"redis://127.0.0.1:6379\"",
        );
        let waiting = Arc::clone(engine.waiting());
        let current = Arc::new(Current::from_pointee(engine));
        let now: Now = || SECOND;
        let ask = |cost| {
            waiting
                .decide(&current, &[question("a", cost, 60_000)], now)
                .unwrap()
                .pop()
                .unwrap()
        };
        assert!(matches!(
            ask(60),
            Decision::Made(Decided {
                answer: Answer { allowed: true, .. },
                ..
            })
        ));
        let waits = ask(1);
        assert!(matches!(waits, Decision::Waits(_)), "{does}");
        match does {
            "reset" => assert_eq!(current.load().reset("jobs"), Ok(Some(1))),
            _ => current
                .load()
                .set_share("jobs", common::share::Share::WHOLE, true),
        }
        assert!(waits.wait().unwrap().answer.allowed, "{does}");
    }
}

#[test]
fn the_end_answers_everybody() {
    let engine = engine("rate = \"1/s\"\nburst = 1");
    let waiting = Arc::clone(engine.waiting());
    let current = Arc::new(Current::from_pointee(engine));
    let now: Now = || SECOND;
    let ask = || {
        waiting
            .decide(&current, &[question("a", 1, 10_000)], now)
            .unwrap()
            .pop()
            .unwrap()
    };
    let decisions = [ask(), ask(), ask()];
    assert_eq!(waiting.close(&current.load(), SECOND), 2);
    let allowed: Vec<bool> = decisions
        .into_iter()
        .map(|decision| decision.wait().unwrap().answer.allowed)
        .collect();
    assert_eq!(allowed, [true, false, false]);
    assert!(matches!(
        ask(),
        Decision::Made(Decided {
            answer: Answer { allowed: false, .. },
            ..
        })
    ));
}

/// Requests before and after midnight are in one queue.
#[test]
fn requests_wait_for_midnight_in_the_order_of_arrival() {
    use std::sync::atomic::AtomicU64;

    // Ten seconds before a day in UTC.
    let wall = Arc::new(AtomicU64::new(1_781_136_000 * SECOND - 10 * SECOND));
    let mut harness = Harness::new("rate = \"3/calendar-day\"");
    harness.engine = harness.engine.by_wall(&wall);
    let advance = |harness: &mut Harness, milliseconds: u64| {
        for _ in 0..milliseconds {
            wall.fetch_add(MILLISECOND, Ordering::Relaxed);
            harness.advance();
        }
    };
    harness.ask(0, &question("a", 3, 0));
    // It would pass ten seconds later, and does not wait for so long.
    harness.ask(1, &question("a", 1, 9_999));
    advance(&mut harness, 9_000);
    harness.ask(2, &question("a", 2, 5_000));
    harness.ask(3, &question("a", 1, 5_000));
    // Nothing is left of the next day.
    harness.ask(4, &question("a", 1, 5_000));
    assert_eq!(
        harness.told,
        BTreeMap::from([
            (0, (true, SECOND)),
            (1, (false, SECOND)),
            (4, (false, 10 * SECOND)),
        ])
    );
    // The clocks of the day are ahead of the queue's by a step: the day begins sooner.
    wall.fetch_add(500 * MILLISECOND, Ordering::Relaxed);
    advance(&mut harness, 500);
    // Behind those that wait.
    harness.ask(5, &question("a", 1, 0));
    advance(&mut harness, 1_000);
    let told = |number: usize| harness.told.get(&number).map(|(passed, _)| *passed);
    assert_eq!([2, 3, 5].map(told), [Some(true), Some(true), Some(false)]);
    assert!(harness.engine.waiting().is_empty());
}
