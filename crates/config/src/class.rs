//! `[[class]]`.

use std::net::IpAddr;

use ipnet::IpNet;

use super::names;
use super::policy::{AgentConfig, Country, GeoKey, Multiplier, Prefix};
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Value};
use super::table;

/// Sources that get more or less than the limits say. The longest matching prefix of `sources` decides. A source in no
/// class's `sources` belongs to the first class with its `asn` or `country`. A source in no class is in the class
/// `default`, with the multiplier 1.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[[class]]", since = "0.1.0", check = check)]
#[table(
    example = "[[class]]\nname = \"payer\"\nsources = [\"198.51.100.0/24\", \"2001:db8:1::/48\"]\nmultiplier = 5\n\n\
                   [agent]\ninterfaces = [\"eth0\"]\n\n\
                   [[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"\n"
)]
pub struct Class {
    /// Unique name, shown by `weir show`: at most 64 characters, without control characters. `default` is reserved.
    #[key(examples = ["payer"], check = check_name)]
    pub name: String,
    /// Addresses and prefixes of the class. A prefix belongs to one class.
    // In a policy in effect, those of `geo` come after them.
    #[key(absent = "none; a class requires `sources`, `asn` or `country`")]
    #[key(examples = ["198.51.100.0/24", "2001:db8:1::/48"])]
    pub sources: Vec<Prefix>,
    /// Numbers of autonomous systems whose networks belong to the class. Requires `[geo] asn`.
    #[key(absent = "none", range = (1.0, u32::MAX as f64), examples = ["64500"])]
    pub asn: Vec<u32>,
    /// Countries whose networks belong to the class, as codes of ISO 3166-1. Requires `[geo] country`.
    #[key(absent = "none", examples = ["XX"])]
    pub country: Vec<Country>,
    /// Factor on every limit's rate and burst. Windows keep their length and multiply their count. Sliding logs of packets ignore
    /// factors above 1 where the table has no memory for larger logs; `weir check` has a note then.
    #[key(default = Multiplier::ONE)]
    pub multiplier: Multiplier,
    /// Whether no limit applies to the class. Conflicts with `multiplier`. Bans still apply.
    #[key(default = false)]
    pub unlimited: bool,
}

/// The multiplier of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A factor on every limit.
    Multiplier(Multiplier),
    /// No limit at all.
    Unlimited,
}

impl Class {
    /// `asn` and `country`.
    #[must_use]
    pub fn geo(&self) -> Vec<GeoKey> {
        GeoKey::all(&self.asn, &self.country)
    }

    #[must_use]
    pub fn service(&self) -> Service {
        if self.unlimited {
            Service::Unlimited
        } else {
            Service::Multiplier(self.multiplier)
        }
    }
}

/// The class of an address, by the longest matching prefix.
#[must_use]
pub fn class_of<'c>(
    classes: impl IntoIterator<Item = &'c Class>,
    address: IpAddr,
) -> Option<&'c Class> {
    let prefixes = classes
        .into_iter()
        .flat_map(|class| class.sources.iter().map(move |prefix| (prefix, class)));
    let around = prefixes.filter(|(prefix, _)| prefix.contains(address));
    around
        .max_by_key(|(prefix, _)| prefix.mapped_length())
        .map(|(_, class)| class)
}

/// The multipliers of the classes, after that of everybody else.
pub fn multipliers(classes: &[Located<'_, Class>]) -> Vec<Multiplier> {
    let of_class = |read: &Located<'_, Class>| match read.table.service() {
        Service::Multiplier(multiplier) => Some(multiplier),
        Service::Unlimited => None,
    };
    std::iter::once(Multiplier::ONE)
        .chain(classes.iter().filter_map(of_class))
        .collect()
}

/// The name of a class by its number; 0 is the default class.
#[must_use]
pub fn class_name(classes: &[Class], number: u32) -> &str {
    let class = number
        .checked_sub(1)
        .and_then(|nth| classes.get(nth as usize));
    class.map_or("default", |class| &class.name)
}

impl Value for Multiplier {
    const KIND: Kind = Kind::Number(0.000_001, 1_000_000.0);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let Some(number) = table::float(at) else {
            key.wrong_type(at, problems);
            return None;
        };
        let (least, most) = key.bounds(&Self::KIND);
        let is_inside = (least..=most).contains(&number);
        let multiplier = Self::new(number).filter(|_| is_inside);
        if multiplier.is_none() {
            let message = format!("invalid {}: {number} is out of range", key.name);
            problems.error(at.span(), message, key.help());
        }
        multiplier
    }

    fn write(&self) -> Option<toml::Value> {
        let factor = self.factor();
        Some(match factor.fract() {
            0.0 => (factor as i64).into(),
            _ => factor.into(),
        })
    }

    fn shown(&self) -> String {
        self.factor().to_string()
    }
}

fn check(read: &Located<'_, Class>, problems: &mut Problems) {
    if read.table.unlimited && read.has(&Class::MULTIPLIER) {
        problems.conflict(
            read.span_of(&Class::MULTIPLIER),
            "multiplier conflicts with unlimited = true",
            "leave out multiplier or unlimited",
        );
    }
}

fn check_name(text: &str, key: &Key) -> Result<(), Wrong> {
    if text == "default" {
        return Err(Wrong::new(
            "the name \"default\" is reserved",
            "give it another name: sources in no class are in \"default\"",
        ));
    }
    names::check(text, "class", key)
}

/// A prefix and the index of its class; `None` for one of `never_limit`.
pub type ClassPrefix = (IpNet, Option<usize>);

/// The prefixes of classes and of `never_limit`, in order: each precedes all that it contains.
pub fn in_order(classes: &[Located<'_, Class>], agent: &AgentConfig) -> Vec<ClassPrefix> {
    let of_classes = classes.iter().enumerate().flat_map(|(nth, read)| {
        let sources = read.table.sources.iter();
        sources.map(move |prefix| (prefix.0.trunc(), Some(nth)))
    });
    let never = agent
        .never_limit
        .iter()
        .map(|prefix| (prefix.0.trunc(), None));
    let mut all: Vec<ClassPrefix> = of_classes.chain(never).collect();
    // As numbers, since there may be many.
    all.sort_unstable_by_key(|(prefix, class)| (bits(prefix), prefix.prefix_len(), *class));
    all
}

/// The address's bits, after those of all IPv4 addresses if it is of IPv6.
fn bits(prefix: &IpNet) -> (bool, u128) {
    match prefix {
        IpNet::V4(prefix) => (false, u32::from(prefix.addr()).into()),
        IpNet::V6(prefix) => (true, prefix.addr().into()),
    }
}

/// Checks that classes have sources, and warns where longer prefixes of other classes and of `never_limit` cover all their
/// prefixes, which are [`in_order`]. `listed` are the classes of lists.
pub fn check_reach(
    classes: &[Located<'_, Class>],
    prefixes: &[ClassPrefix],
    listed: &[&str],
    problems: &mut Problems,
) {
    let mut is_reached = vec![false; classes.len()];
    for (at, (prefix, class)) in prefixes.iter().enumerate() {
        let Some(class) = class.filter(|class| !is_reached[*class]) else {
            continue;
        };
        let inside = prefixes[at + 1..]
            .iter()
            .take_while(|(other, _)| prefix.contains(other));
        let taken: Vec<IpNet> = inside
            .filter(|(_, other)| *other != Some(class))
            .map(|(other, _)| *other)
            .collect();
        is_reached[class] = !IpNet::aggregate(&taken).contains(prefix);
    }
    // The prefixes of databases and lists are not known yet.
    let has_list = |read: &Located<'_, Class>| listed.contains(&read.table.name.as_str());
    let unreached = classes
        .iter()
        .zip(is_reached)
        .filter(|(read, is_reached)| !is_reached && read.table.geo().is_empty() && !has_list(read));
    for (read, _) in unreached {
        let name = &read.table.name;
        let keys = [Class::SOURCES, Class::ASN, Class::COUNTRY];
        if !keys.iter().any(|key| read.has(key)) {
            let help = format!(
                "add sources = [\"198.51.100.0/24\"], or asn or country, or a [[ban_list]] with action = \"class:{name}\""
            );
            problems.conflict(read.span(), "missing key \"sources\" in [[class]]", help);
            continue;
        }
        let (message, help) = if read.table.sources.is_empty() {
            (
                format!("class {name:?} has no effect: sources is empty"),
                "name its sources, or leave out the class",
            )
        } else {
            let message = format!(
                "class {name:?} has no effect: longer prefixes of others cover all of its sources"
            );
            (message, "leave out the class, or a prefix of the others")
        };
        problems.warning(read.span_of(&Class::NAME), message, help);
    }
}
