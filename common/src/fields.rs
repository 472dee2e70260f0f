//! Fields of the records that the kernel programs send through rings.

/// The 64-bit field at this byte; `None` if the record is too short.
pub fn word(record: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*record.get(at..)?.first_chunk()?))
}

/// The 32-bit field at this byte; `None` if the record is too short.
pub fn half(record: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*record.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_beyond_the_end_is_none() {
        let record = [1u32, 2, 3].map(u32::to_ne_bytes).concat();
        let halves = [0, 4, 8].map(|at| half(&record, at));
        assert_eq!(halves, [Some(1), Some(2), Some(3)]);
        let last = u64::from_ne_bytes(record[4..].try_into().unwrap());
        assert_eq!(word(&record, 4), Some(last));
        assert_eq!([5, 12, 13].map(|at| word(&record, at)), [None; 3]);
        assert_eq!([9, 12, 13].map(|at| half(&record, at)), [None; 3]);
    }
}
