//! The demand by which a host takes its part of a window.
//!
//! A host takes the part own ÷ (own + others), by the demands that the others published last. Own is at most what every
//! other host has, or will have, as this host's last: `own(i) ≤ last(j, i)` for all hosts i and j. So the parts of all
//! hosts add up to at most 1, whichever publications each has read.

/// A published demand.
#[derive(Clone, Copy, Debug)]
struct Published {
    /// The first instant at which the others could read it; `None` until the store has replied.
    at: Option<u64>,
    demand: f64,
}

/// The demand of one key, and what the others may have received of it.
#[derive(Debug, Default)]
pub struct Claim {
    /// The publications that another host may have as the last one, the oldest first.
    published: Vec<Published>,
    demand: f64,
}

impl Claim {
    /// The size of a published demand.
    #[cfg(test)]
    pub const EACH: usize = size_of::<Published>();

    /// The demand that counts for the part in effect.
    pub const fn demand(&self) -> f64 {
        self.demand
    }

    /// The demand to publish, given the present one. Not less than that of the part in effect, which is replaced only with
    /// the store's reply.
    pub fn publish(&mut self, present: f64) -> f64 {
        let demand = present.max(self.demand);
        match self.published.last_mut() {
            // The others have one of the two.
            Some(last) if last.at.is_none() => last.demand = last.demand.min(demand),
            _ => self.published.push(Published { at: None, demand }),
        }
        demand
    }

    /// Takes as much as the others have or will have received, at the store's reply: `now` is the instant of this host's
    /// last publication by the store's clock, and every other host has received all until `received`.
    pub fn update(&mut self, present: f64, now: u64, received: u64) {
        for published in &mut self.published {
            published.at.get_or_insert(now);
        }
        let is_received = |published: &Published| published.at.is_some_and(|at| at <= received);
        // Every other host has the next one.
        let superseded = self.published.iter().skip(1);
        let superseded = superseded
            .take_while(|published| is_received(published))
            .count();
        self.published.drain(..superseded);
        let demands = self.published.iter().map(|published| published.demand);
        self.demand = demands.fold(present, f64::min);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_demand_rises_when_all_have_received_it_and_falls_at_once() {
        let mut claim = Claim::default();
        claim.publish(1.0);
        claim.update(1.0, 10, 0);
        assert_eq!(claim.publish(100.0), 100.0);
        claim.update(100.0, 20, 10);
        assert_eq!(claim.demand(), 1.0, "the others may have the first");
        claim.publish(100.0);
        claim.update(100.0, 30, 19);
        assert_eq!(claim.demand(), 1.0);
        claim.publish(100.0);
        claim.update(100.0, 40, 20);
        assert_eq!(claim.demand(), 100.0);
        // The part in effect is the larger one until the reply.
        assert_eq!(claim.publish(2.0), 100.0);
        claim.update(2.0, 50, 40);
        assert_eq!(claim.demand(), 2.0);
    }

    /// A publication without a reply may have been received.
    #[test]
    fn unanswered_publications_count_with_the_least() {
        let mut claim = Claim::default();
        for demand in [50.0, 1.0, 80.0] {
            claim.publish(demand);
        }
        claim.update(80.0, 10, 5);
        assert_eq!(claim.demand(), 1.0);
        claim.publish(80.0);
        claim.update(80.0, 20, 10);
        assert_eq!(claim.demand(), 1.0);
        claim.publish(80.0);
        claim.update(80.0, 30, 20);
        assert_eq!(claim.demand(), 80.0);
    }
}
