//! The match connlimit.

use super::super::rule::{Family, Key, Limit};

/// connlimit's options.
#[derive(Default)]
pub struct Connlimit {
    count: Option<u64>,
    is_over: bool,
    mask: Option<u8>,
}

/// Reads an option of connlimit; `false` if it is none that Weir has, such as a count by destination.
pub fn read(option: &str, value: &str, limit: &mut Connlimit) -> bool {
    match option {
        "--connlimit-above" | "--connlimit-upto" => {
            limit.is_over = option == "--connlimit-above";
            limit.count = value.parse().ok();
            limit.count.is_some()
        }
        "--connlimit-mask" => {
            limit.mask = value.parse().ok();
            limit.mask.is_some()
        }
        "--connlimit-saddr" => true,
        _ => false,
    }
}

pub fn limit(options: &Connlimit, family: Family) -> Option<Limit> {
    let whole = match family {
        Family::V4 => 32,
        Family::V6 => 128,
    };
    let key = match options.mask {
        Some(0) => Key::All,
        mask => Key::Source {
            prefix: mask.filter(|mask| *mask != whole),
            has_port: false,
        },
    };
    Some(Limit::on_open(options.count?, key, options.is_over))
}
