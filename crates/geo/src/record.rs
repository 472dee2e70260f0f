//! The fields of a database's records, as MaxMind, DB-IP, ip-location-db and IPinfo name them.

use std::fmt;

use config::policy::{Country, GeoKey, GeoKind};
use maxminddb::{LookupResult, MaxMindDbError};
use serde::de::{Error, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// A record of networks; its other fields may be of any type.
#[derive(Deserialize)]
struct AsnRecord {
    /// MaxMind, DB-IP, ip-location-db.
    #[serde(default)]
    autonomous_system_number: Asn,
    /// IPinfo: `"AS64500"`.
    #[serde(default)]
    asn: Asn,
}

/// A record of countries; its other fields may be of any type.
#[derive(Deserialize)]
struct CountryRecord {
    /// MaxMind and DB-IP: a map with `iso_code`; IPinfo: the code, or a name beside `country_code`.
    #[serde(default)]
    country: Code,
    /// ip-location-db and IPinfo.
    #[serde(default)]
    country_code: Code,
}

/// The number of an autonomous system; `None` for 0 and for a text without a number.
#[derive(Clone, Copy, Default)]
struct Asn(Option<u32>);

/// A country; `None` for a text that is no code.
#[derive(Clone, Copy, Default)]
struct Code(Option<Country>);

/// The key of a network's record; `None` if it has none of this kind.
///
/// # Errors
///
/// When the record is damaged, or the field has another type.
pub fn key(
    kind: GeoKind,
    network: &LookupResult<'_, &[u8]>,
) -> Result<Option<GeoKey>, MaxMindDbError> {
    Ok(match kind {
        GeoKind::Asn => {
            let record: Option<AsnRecord> = network.decode()?;
            record
                .and_then(|record| record.autonomous_system_number.0.or(record.asn.0))
                .map(GeoKey::Asn)
        }
        GeoKind::Country => {
            let record: Option<CountryRecord> = network.decode()?;
            record
                .and_then(|record| record.country.0.or(record.country_code.0))
                .map(GeoKey::Country)
        }
    })
}

impl<'de> Deserialize<'de> for Asn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;
        impl Visitor<'_> for Number {
            type Value = Asn;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the number of an autonomous system")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Asn, E> {
                let number = u32::try_from(number)
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))?;
                Ok(Asn((number > 0).then_some(number)))
            }

            fn visit_str<E>(self, text: &str) -> Result<Asn, E> {
                let digits = text.strip_prefix("AS").unwrap_or(text);
                Ok(Asn(digits.parse().ok().filter(|number| *number > 0)))
            }
        }
        deserializer.deserialize_any(Number)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Code;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the code of a country")
            }

            fn visit_str<E>(self, text: &str) -> Result<Code, E> {
                Ok(Code(Country::new(text)))
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Code, M::Error> {
                let mut code = Code::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "iso_code" {
                        code = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(code)
            }
        }
        deserializer.deserialize_any(Text)
    }
}
