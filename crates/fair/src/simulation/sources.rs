//! Sources of a simulated host.

use testbed::random::Random;

/// Seconds of a step of packets and server.
pub const STEP: f64 = 0.01;

/// Equal sources.
#[derive(Clone)]
pub struct Block {
    pub name: &'static str,
    pub number: usize,
    /// The rate that each of them wants, in units a second.
    pub each: f64,
    pub start: f64,
    pub end: f64,
    pub weight: f64,
    pub kind: Kind,
    /// The rate's share, by seconds since the start.
    pub shape: fn(f64) -> f64,
    /// The network of a source, by its number within the block. None: one of its own.
    pub network: Option<fn(usize) -> usize>,
    /// The cost of a unit for the server.
    pub cost: f64,
    /// The way of the units to the server.
    pub way: Way,
}

/// The counters through which a unit goes.
#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    /// The limit, and the queue.
    Both,
    /// The limit alone: the unit reaches no queue.
    Junk,
    /// The queue alone.
    Outside,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Steady,
    /// A random address for each packet.
    MadeUp,
    /// The next address for each packet, so that networks come in turn.
    InTurn,
    /// So many units at once.
    Page(f64),
    /// Half the rate after a loss, then slowly up.
    BacksOff,
    /// 60 % of refused units come again after a second.
    Retries,
}

impl Block {
    /// Sources that send all the time.
    pub fn always(name: &'static str, number: usize, each: f64) -> Self {
        Self {
            name,
            number,
            each,
            start: 0.0,
            end: 1e9,
            weight: 1.0,
            kind: Kind::Steady,
            shape: |_| 1.0,
            network: None,
            cost: 1.0,
            way: Way::Both,
        }
    }

    /// Sources that send between two times.
    pub fn between(name: &'static str, number: usize, each: f64, start: f64, end: f64) -> Self {
        Self {
            start,
            end,
            ..Self::always(name, number, each)
        }
    }
}

/// Units that a source sends in a step.
#[derive(Clone, Copy)]
pub struct Sent {
    pub source: usize,
    pub block: usize,
    pub units: f64,
}

/// The state of sources that back off or retry.
pub struct Demand {
    blocks: Vec<Block>,
    firsts: Vec<usize>,
    windows: Vec<f64>,
    backed_off: Vec<f64>,
    /// Packets so far, by block.
    sent: Vec<usize>,
    retries: Vec<Vec<Sent>>,
}

impl Demand {
    pub fn new(blocks: &[Block], steps: usize) -> Self {
        let mut firsts = Vec::new();
        let mut windows = Vec::new();
        for block in blocks {
            firsts.push(windows.len());
            windows.extend(std::iter::repeat_n(block.each, block.number));
        }
        Self {
            blocks: blocks.to_vec(),
            firsts,
            sent: vec![0; blocks.len()],
            backed_off: vec![-1.0; windows.len()],
            windows,
            retries: vec![Vec::new(); steps + 200],
        }
    }

    pub fn count(&self) -> usize {
        self.windows.len()
    }

    /// The network of each source; sources alone have large numbers.
    pub fn networks(&self) -> Vec<usize> {
        let mut networks = Vec::with_capacity(self.count());
        for block in &self.blocks {
            for k in 0..block.number {
                networks.push(block.network.map_or(1_000_000 + networks.len(), |of| of(k)));
            }
        }
        networks
    }

    /// Units that are sent in a step.
    pub fn offer(&mut self, step: usize, random: &mut Random) -> Vec<Sent> {
        let now = step as f64 * STEP;
        let mut sent = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let each = block.each * (block.shape)(now - block.start);
            if now < block.start || now >= block.end || each <= 0.0 {
                continue;
            }
            let first = self.firsts[number];
            let mut send = |k: usize, units: f64| {
                if units > 0.0 {
                    sent.push(Sent {
                        source: first + k,
                        block: number,
                        units,
                    });
                }
            };
            match block.kind {
                Kind::MadeUp => {
                    let units = random.poisson(each * block.number as f64 * STEP) as usize;
                    (0..units)
                        .for_each(|_| send((random.uniform() * block.number as f64) as usize, 1.0));
                }
                Kind::InTurn => {
                    let units = random.poisson(each * block.number as f64 * STEP) as usize;
                    let from = self.sent[number];
                    // A step of about half of the addresses.
                    let nth = |packet: usize| packet * 48_271 % block.number;
                    (from..from + units).for_each(|packet| send(nth(packet), 1.0));
                    self.sent[number] += units;
                }
                Kind::Page(page) => {
                    for k in 0..block.number {
                        let comes = random.uniform() < each / page * STEP;
                        send(k, if comes { page } else { 0.0 });
                    }
                }
                Kind::BacksOff => {
                    for k in 0..block.number {
                        send(k, random.poisson(self.windows[first + k] * STEP));
                    }
                }
                Kind::Steady | Kind::Retries => {
                    (0..block.number).for_each(|k| send(k, random.poisson(each * STEP)));
                }
            }
        }
        sent.append(&mut self.retries[step]);
        sent
    }

    /// Lets sources react to refused and lost units. `through`: units that passed, and those that were accepted.
    pub fn react(
        &mut self,
        step: usize,
        sent: &[Sent],
        through: &[(f64, f64)],
        random: &mut Random,
    ) {
        let now = step as f64 * STEP;
        for (sent, (passed, accepted)) in sent.iter().zip(through) {
            let block = &self.blocks[sent.block];
            if block.kind == Kind::Retries && now < block.end {
                let units = (0.6 * (sent.units - passed) + random.uniform()).floor();
                if units > 0.0 {
                    self.retries[step + 100].push(Sent { units, ..*sent });
                }
            }
            let is_lost = *accepted < sent.units - 0.5;
            if block.kind == Kind::BacksOff && is_lost && now - self.backed_off[sent.source] > 0.2 {
                self.windows[sent.source] *= 0.5;
                self.backed_off[sent.source] = now;
            }
        }
        for (block, first) in self.blocks.iter().zip(&self.firsts) {
            if block.kind == Kind::BacksOff {
                for window in &mut self.windows[*first..first + block.number] {
                    *window = (*window + block.each * 0.5 * STEP).min(block.each);
                }
            }
        }
    }
}
