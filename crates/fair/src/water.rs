//! Water-filling: the level at which the rates of all sources fit into a room.

/// The level L at which the sum of min(rate, weight × L) is `room`. Infinite if everything fits, 0 if nothing does.
///
/// Each pass takes out the sources that are below the level of the others, which raises it: a few passes, without sorting.
#[must_use]
pub fn water_level(sources: impl Iterator<Item = (f64, f64)>, room: f64) -> f64 {
    let mut above: Vec<(f64, f64)> = sources.filter(|(rate, _)| *rate > 0.0).collect();
    let mut room = room;
    if above.iter().map(|(rate, _)| rate).sum::<f64>() <= room {
        return f64::INFINITY;
    }
    loop {
        let weights: f64 = above.iter().map(|(_, weight)| weight).sum();
        let level = (room / weights).max(0.0);
        let before = above.len();
        above.retain(|(rate, weight)| {
            let pays = *rate > weight * level;
            if !pays {
                room -= rate;
            }
            pays
        });
        // Rounding may leave nobody: the last level is then the root.
        if above.len() == before || above.is_empty() {
            return level;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn level(sources: &[(f64, f64)], room: f64) -> f64 {
        water_level(sources.iter().copied(), room)
    }

    #[test]
    fn the_rates_below_the_level_sum_up_to_the_room() {
        let sources: Vec<(f64, f64)> = (1..200)
            .map(|k| (f64::from(k * k % 97), f64::from(k % 5 + 1)))
            .collect();
        let offered: f64 = sources.iter().map(|(rate, _)| rate).sum();
        for tenths in 1..10 {
            let room = offered * f64::from(tenths) / 10.0;
            let level = level(&sources, room);
            let fits: f64 = sources
                .iter()
                .map(|(rate, weight)| rate.min(weight * level))
                .sum();
            assert!((fits - room).abs() < 1e-6 * room, "{fits} of {room}");
        }
    }

    #[test]
    fn a_light_source_lacks_nothing_and_weights_divide_the_rest() {
        let sources = [(1.0, 1.0), (100.0, 1.0), (100.0, 3.0)];
        assert!((level(&sources, 41.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn what_fits_has_no_level() {
        assert!(level(&[(1.0, 1.0), (2.0, 1.0)], 3.0).is_infinite());
        assert!(level(&[], 0.0).is_infinite());
        assert!(level(&[(1.0, 1.0)], 0.0) <= 0.0);
    }
}
