//! The numbers of networks (autonomous systems) in search trees and keys.
//!
//! A node of a tree has fewer bits than the number of a network. So the numbers for private use follow those that are
//! assigned, and a number is the same in every database. No other number above these is in use in the internet.

/// Numbers below this one are as they are.
const PRIVATE: u32 = 1 << 28;
/// The first and the last number for private use (RFC 6996).
const FIRST_PRIVATE: u32 = 4_200_000_000;
const LAST_PRIVATE: u32 = 4_294_967_294;

/// The number of a network in trees and keys, at least 1 and less than 2²⁹; `None` if it has none.
#[must_use]
pub const fn from_asn(number: u32) -> Option<u32> {
    match number {
        1..PRIVATE => Some(number),
        FIRST_PRIVATE..=LAST_PRIVATE => Some(number - FIRST_PRIVATE + PRIVATE),
        _ => None,
    }
}

/// The number of the autonomous system.
#[must_use]
pub const fn to_asn(network: u32) -> u32 {
    if network < PRIVATE {
        network
    } else {
        network - PRIVATE + FIRST_PRIVATE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_in_use_has_its_own_within_a_node() {
        let numbers = [
            1,
            64_500,
            PRIVATE - 1,
            FIRST_PRIVATE,
            FIRST_PRIVATE + 1,
            LAST_PRIVATE,
        ];
        let networks = numbers.map(|number| from_asn(number).unwrap());
        assert!(
            networks.is_sorted_by(|a, b| a < b) && networks[5] < 1 << 29,
            "{networks:?}"
        );
        assert_eq!(networks.map(to_asn), numbers);
        for reserved in [0, PRIVATE, FIRST_PRIVATE - 1, u32::MAX] {
            assert_eq!(from_asn(reserved), None, "{reserved}");
        }
    }
}
