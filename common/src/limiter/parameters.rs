//! A limiter as a rule's row has it.

/// A limiter's fields in a rule's row. Those that an algorithm does not use are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Parameters {
    /// Buckets: ticks a unit, times 2^`shift`. Windows and log: T in ticks.
    pub interval: u64,
    /// Buckets: the burst in ticks.
    pub tolerance: u64,
    /// The burst or N, in units.
    pub most: u64,
    /// Buckets: fraction bits of `interval`. The others: low bits of a state that hold the count.
    pub shift: u8,
    /// Sliding window: [`super::SlidingWindow::share_shift`].
    pub share_shift: u8,
}

/// A limiter that a rule's row can hold.
pub trait Parametric: Copy {
    /// The algorithm in the config, in JSON and in metrics.
    const NAME: &'static str;
    /// Whether a limit can delay packets instead of refusing them.
    const CAN_SHAPE: bool = false;

    /// The limiter in a row.
    fn from_parameters(parameters: Parameters) -> Self;

    /// The limiter's part of a row.
    fn parameters(&self) -> Parameters;
}
