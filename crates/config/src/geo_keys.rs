//! The keys `asn` and `country` of classes, ban lists and limits.

use super::policy::{Country, GeoKey};
use super::report::Span;
use super::schema::{Key, Located};
use super::table::{Table, integer};

const ASN: &str = "[64500]";
const COUNTRY: &str = "[\"XX\"]";

/// The entries of `asn` and `country` with their spans.
pub fn keys(table: &mut Table<'_, '_>) -> Vec<(GeoKey, Span)> {
    let mut keys = Vec::new();
    for value in table.array("asn", ASN).unwrap_or_default() {
        match integer(value).map(u32::try_from) {
            Some(Ok(number @ 1..)) => keys.push((GeoKey::Asn(number), value.span())),
            _ if value.get_ref().is_integer() => {
                table.problems.error(
                    value.span(),
                    "asn is out of range",
                    "write numbers from 1 to 4294967295",
                );
            }
            _ => table.wrong_type("asn", value, &format!("numbers: asn = {ASN}")),
        }
    }
    for (text, span) in table.strings("country", COUNTRY) {
        match Country::new(text) {
            Some(code) => keys.push((GeoKey::Country(code), span)),
            None => {
                let help =
                    format!("write codes of two letters as in ISO 3166-1: country = {COUNTRY}");
                table
                    .problems
                    .error(span, format!("invalid country {text:?}"), help);
            }
        }
    }
    keys
}

/// The entries of a declared table's `asn` and `country` with their spans.
pub fn located<T>(read: &Located<'_, T>, asn: &Key, country: &Key) -> Vec<(GeoKey, Span)> {
    let asn = read.elements(asn).into_iter();
    let country = read.elements(country).into_iter();
    asn.map(|(number, span)| (GeoKey::Asn(number), span))
        .chain(country.map(|(code, span)| (GeoKey::Country(code), span)))
        .collect()
}
