//! Parameters of the law. Those without a source were found by simulation, and hold within a factor of two.

/// Seconds between two readings while sources are limited.
pub(crate) const TICK: f64 = 0.1;
/// Seconds between two readings while nothing is limited.
pub(crate) const TICK_OFF: f64 = 0.05;
/// The longest tick, in seconds.
const LONGEST_TICK: f64 = 0.5;
/// The longest tick without a report of the service's load: what passed is compared with the growth of waits meanwhile.
const TICK_WITHOUT_REPORT: f64 = 0.3;
/// The units of a tick below which it is lengthened: fewer have too much noise.
const UNITS_OF_A_TICK: f64 = 20.0;

/// Seconds of its rate that a bucket stores.
pub(crate) const BURST: f64 = 1.0;
/// The least burst: packets of a polite source meet by chance.
pub(crate) const LEAST_BURST: f64 = 5.0;
/// The least burst while bursts are shortened.
pub(crate) const LEAST_AT_ALL: f64 = 2.0;
/// Seconds of its rate that a source may always send at once: what network cards and senders gather.
pub(crate) const GATHERED: f64 = 0.01;
/// A network's bursts, in largest bursts of a source.
pub(crate) const FULL_TIMES_A_NETWORK: f64 = 4.0;
/// Seconds in which the time that a network's bucket stores follows its level. A state is an instant: a burst of as many units at
/// each level would let all networks send at once when the level falls, and none of them when it rises.
pub(crate) const FOLLOWS_LEVEL: f64 = 5.0;
/// Seconds of the rate of all sources that pass at once: what the queues of servers hold.
pub(crate) const BURST_OF_ALL: f64 = 0.05;
/// The share of a burst at the onset, and what is added a second: whole again after seven seconds.
pub(crate) const FIRST_BURST_SHARE: f64 = 0.3;
pub(crate) const BURST_SHARE_A_SECOND: f64 = 0.1;

/// The share of passed units whose loss is an overload by itself, and the mean loss of 0.3 s that is one.
pub(crate) const LOSS: f64 = 0.02;
pub(crate) const MEAN_LOSS: f64 = 0.004;
/// The share of the newest loss in the mean.
pub(crate) const MEAN_LOSS_GAIN: f64 = 0.3;
/// Seconds of waiting that are an overload; the noise of nginx at 95 % load is 44 ms. Or so many times the target, if that is more:
/// 0.125 s for listeners.
const LONG_WAIT: f64 = 0.1;
const LONG_WAIT_TARGETS: f64 = 2.5;
/// Seconds of waiting that are an overload where this is the target.
pub(crate) const fn long_wait(target: f64) -> f64 {
    LONG_WAIT.max(LONG_WAIT_TARGETS * target)
}
/// Fewer waiting units than these are noise.
pub(crate) const FEWEST_WAITING: f64 = 5.0;
/// All passed units reach queues if more than this share of them has, over so many seconds.
pub(crate) const FEW_ARRIVE: f64 = 0.9;
pub(crate) const ARRIVALS_WINDOW: f64 = 0.5;
/// Connections of a tick from which the tick alone shows how many units one is; otherwise, over so many seconds.
pub(crate) const FEWEST_ARRIVALS: f64 = 10.0;
pub(crate) const CONNECTIONS_WINDOW: f64 = 1.0;
/// Packets of a connection while that cannot be measured.
pub(crate) const PACKETS_OF_A_CONNECTION: f64 = 8.0;
/// More drops and growth than what passed, by this factor and so many units, come from outside of the limit, and the share
/// of what passed that is served then, if nothing is known.
pub(crate) const OUTSIDE: f64 = 1.05;
pub(crate) const OUTSIDE_UNITS: f64 = 5.0;
pub(crate) const SERVED_BESIDE: f64 = 0.1;
/// The wait to which the queue is regulated, in seconds. For UDP this share of the buffer if that is less.
pub(crate) const TARGET: f64 = 0.05;
pub(crate) const TARGET_OF_BUFFER: f64 = 0.3;
/// Loads between an idle service and the target at a load of 1.
pub(crate) const ROOM_OF_LOAD: f64 = 1.0 / 3.0;
/// The share of the target above which the server is never idle.
pub(crate) const BUSY: f64 = 0.4;

/// The goodput before an onset, as a mean over so many seconds, is a lower bound of the capacity for so many.
pub(crate) const USUAL_WINDOW: f64 = 1.0;
pub(crate) const USUAL_HOLDS: f64 = 0.5;
/// Units that reach no queue are a part of it, since samples have them, too; up to so many times the goodput.
pub(crate) const USUAL_TIMES: f64 = 3.0;
/// Weights of a new goodput in the capacity: usually, and after it fell below [`FALLEN`] of the capacity in two ticks.
pub(crate) const GAIN: f64 = 0.1;
pub(crate) const GAIN_FALLEN: f64 = 0.6;
pub(crate) const FALLEN: f64 = 0.8;
/// The share of the room that has to pass for goodput to say something of an idle server's capacity.
pub(crate) const NEAR_ROOM: f64 = 0.75;

/// Seconds in which the queue is drained to its target: the pole of the outer loop.
pub(crate) const DRAIN: f64 = 0.6;
/// The share of the capacity that is kept free.
pub(crate) const SPARE: f64 = 0.02;
/// The bounds of the distance of the room from the capacity.
pub(crate) const LEAST_PULL: f64 = -0.9;
pub(crate) const MOST_PULL: f64 = 0.25;
/// The part of the loss, and the most loss, that makes the room smaller.
pub(crate) const LOSS_PULL: f64 = 0.5;
pub(crate) const MOST_LOSS_PULL: f64 = 0.05;
/// Growth of the room a tick while the server is idle; it doubles in so many ticks beyond the last known capacity.
pub(crate) const PROBE: f64 = 0.006;
pub(crate) const PROBE_TICKS: f64 = 1.2;
pub(crate) const PROBE_DOUBLINGS: f64 = 8.0;
/// Goodput beyond the last known capacity by which the capacity is unknown, and the busy ticks before it is known.
pub(crate) const BEYOND: f64 = 1.02;
pub(crate) const KNOWN_TICKS: u32 = 5;

/// Gain of the inner loop: the part of the error that a tick corrects. Stable below 6.7 times this with a tick of delay.
pub(crate) const KAPPA: f64 = 0.15;
/// The share of the level above which a source pays.
pub(crate) const PAYS: f64 = 0.6;
/// The ticks, from the onset as 1, in which the level is guessed from samples.
pub(crate) const GUESSES: [u32; 4] = [2, 3, 5, 8];
pub(crate) const LAST_GUESS: u32 = 12;
/// Bounds of a step: for the relative change of the room, for the relative error, down and up.
pub(crate) const STEP_AHEAD: f64 = 1.2;
pub(crate) const STEP_ERROR: f64 = 0.5;
pub(crate) const STEP_DOWN: f64 = 0.3;
pub(crate) const STEP_UP: f64 = 1.12;
/// The least level, in levels at which the capacity is used: usually, at low rates, and with short queues.
pub(crate) const DEEPEST: f64 = 0.2;
pub(crate) const DEEPEST_SLOW: f64 = 0.7;
pub(crate) const DEEPEST_SHORT_QUEUE: f64 = 0.5;
/// Largest bursts below which a level is low, and targets below which a queue is short.
pub(crate) const SLOW_BURSTS: f64 = 4.0;
pub(crate) const SHORT_QUEUE: f64 = 3.0;
/// The least level, in levels at which the room is used, where samples are enough: usually, and while the server is idle.
pub(crate) const SAMPLED: f64 = 0.6;
pub(crate) const SAMPLED_IDLE: f64 = 0.9;

/// The number of samples below which a source has no rate of its own.
pub(crate) const FEWEST_SAMPLES: f64 = 2.5;
/// The share of the capacity that such sources send: up to which samples bound the level, from which on sources are
/// made up. Samples in a second without which nobody is called made up.
pub(crate) const FEW_STRANGERS: f64 = 0.3;
pub(crate) const MANY_STRANGERS: f64 = 0.6;
pub(crate) const SAMPLES_OF_STRANGERS: f64 = 1500.0;
/// Passed units, in capacities, that are too many for a tier at its least level; ticks until the next tier.
pub(crate) const TOO_MANY: f64 = 1.05;
pub(crate) const TICKS_TO_NETWORKS: u32 = 20;
pub(crate) const TICKS_TO_ALL: u32 = 10;
/// The rate of all sources together, in capacities, below which it cannot fall.
pub(crate) const LEAST_ROOM: f64 = 0.1;
/// Back to sources alone: the level that they could have, in least levels, and ticks.
pub(crate) const EASY: f64 = 1.2;
pub(crate) const TICKS_BACK: u32 = 10;

/// The share of offered units whose refusal means that sources are limited; above which bound samples bound the level.
pub(crate) const REFUSES: f64 = 0.002;
pub(crate) const REFUSES_MANY: f64 = 0.02;
/// The share of the room below which what is offered fits.
pub(crate) const FITS: f64 = 0.8;
/// Growth a tick while what is offered fits, and while the limit is released.
pub(crate) const RAISE: f64 = 1.25;
pub(crate) const RELEASE: f64 = 1.6;
/// Seconds without overload before the release: usually, and at most. An overload within [`AGAIN`] seconds of the last
/// release makes it [`LONGER`] times longer.
pub(crate) const HOLDS: [f64; 2] = [2.0, 30.0];
pub(crate) const AGAIN: f64 = 60.0;
pub(crate) const LONGER: f64 = 4.0;
/// The level at which a limit without a largest rate is off, in capacities.
pub(crate) const OFF: f64 = 2.0;

/// Fail-safe: seconds without readable signals, without goodput while units wait, and at the least level without effect.
pub(crate) const UNREADABLE: f64 = 0.5;
pub(crate) const STALLED: f64 = 1.0;
pub(crate) const WITHOUT_EFFECT: f64 = 10.0;
/// The level has no effect on drops if for so many seconds 15 % less passes than at most, with a short queue, and drops
/// are neither half as many nor less by a quarter of what passes less. Means of a second.
pub(crate) const WITHOUT_EFFECT_ON_DROPS: f64 = 2.0;
pub(crate) const EFFECT_WINDOW: f64 = 1.0;
pub(crate) const FEWER_PASS: f64 = 0.15;
pub(crate) const FEWER_DROPS: f64 = 0.5;
pub(crate) const LEAST_EFFECT: f64 = 0.25;
/// Seconds after a release without effect in which nobody is limited; and those in which a level would have had an effect
/// that end them early.
pub(crate) const PAUSE: f64 = 30.0;
pub(crate) const EVIDENT: f64 = 0.5;
/// The share of time with a long queue from which servers are never idle.
pub(crate) const MOSTLY: f64 = 0.5;
/// What passes is an overload by itself if it is so many times what servers take, and what passed at the release.
pub(crate) const TWICE: f64 = 2.0;
/// The shares of the largest goodput, and of what passes, below which there is no goodput.
pub(crate) const NO_GOODPUT: f64 = 0.01;
pub(crate) const NO_PART: f64 = 0.05;

/// The unit that a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    #[default]
    Packets,
    Connections,
    Bytes,
}

impl Unit {
    /// The units of one packet or connection: as many bytes as an Ethernet frame carries.
    #[must_use]
    pub const fn granule(self) -> f64 {
        match self {
            Self::Packets | Self::Connections => 1.0,
            Self::Bytes => 1500.0,
        }
    }

    /// The largest burst of a source: bursts of all have to fit into the server's queue.
    #[must_use]
    pub const fn most_burst(self) -> f64 {
        match self {
            Self::Packets => 50.0,
            Self::Connections => 10.0,
            Self::Bytes => 50.0 * 1500.0,
        }
    }
}

/// The keys that have levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Each source.
    #[default]
    Sources,
    /// Each network, too.
    Networks,
    /// And all sources together.
    All,
}

/// The settings of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub unit: Unit,
    /// The least level, in units a second. Above 0.
    pub at_least: f64,
    /// The level at which the limit is off, in units a second. None: twice the capacity.
    pub at_most: Option<f64>,
    /// The widest keys that can be limited.
    pub widest: Tier,
}

/// Seconds from the last reading until the next. It is due earlier than the longest tick once enough units have come.
/// `lacks_report`: the service has reported no load since.
#[must_use]
pub fn period(is_off: bool, unit: Unit, units: f64, lacks_report: bool) -> f64 {
    if is_off {
        TICK_OFF
    } else if units < UNITS_OF_A_TICK * unit.granule() {
        LONGEST_TICK
    } else if lacks_report {
        TICK_WITHOUT_REPORT
    } else {
        TICK
    }
}
