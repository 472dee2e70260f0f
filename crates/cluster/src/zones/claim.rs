//! Claims to lead a zone, as requests to its store.

use redis::Value;

use crate::connect::Connection;
use crate::error::StoreError;
use crate::ledger::{Claim, ClaimReply, ZoneShare};
use crate::store::{Script, Store};

/// The script by which a host leads its zone.
pub const SCRIPT: &str = include_str!("../zone.lua");

/// The script's arguments after the host.
#[must_use]
pub fn arguments(claim: &Claim) -> Vec<String> {
    let mut arguments = vec![
        claim.lasts.to_string(),
        claim.lease.to_string(),
        u8::from(claim.has_seen).to_string(),
    ];
    if let Some(share) = &claim.share {
        let numbers = [
            share.share,
            share.ends,
            share.alone,
            share.grows,
            share.zones,
            share.sequence,
            share.epoch,
        ];
        arguments.extend(numbers.iter().map(ToString::to_string));
        arguments.push(share.member.clone());
    }
    arguments
}

/// Reads the script's reply.
#[must_use]
pub fn parse(reply: Value) -> Option<ClaimReply> {
    type Reply = (u64, u64, u64, u64, u64, String);
    let (leads, held, demand, is_quiet, at, before): Reply = redis::from_redis_value(reply).ok()?;
    Some(ClaimReply {
        leads: leads == 1,
        held,
        demand,
        is_quiet: is_quiet == 1,
        at,
        before: if before.is_empty() {
            None
        } else {
            Some(zone_share(&before)?)
        },
    })
}

fn zone_share(text: &str) -> Option<ZoneShare> {
    let mut parts = text.splitn(8, ' ');
    let mut number = || parts.next()?.parse().ok();
    Some(ZoneShare {
        share: number()?,
        ends: number()?,
        alone: number()?,
        grows: number()?,
        zones: number()?,
        sequence: number()?,
        epoch: number()?,
        member: parts.next()?.to_owned(),
    })
}

/// Sends a claim for a limit.
pub(super) async fn send(
    (store, script): (&Store, &Script),
    connection: &mut Connection,
    limit: &str,
    claim: &Claim,
) -> Result<ClaimReply, StoreError> {
    let [ledger, _] = store.keys(limit);
    let rest = arguments(claim);
    let mut all = vec![claim.host.as_bytes()];
    all.extend(rest.iter().map(String::as_bytes));
    let reply = store.run(connection, script, &[ledger], &all).await?;
    parse(reply)
        .ok_or_else(|| StoreError::Foreign("the result of zone.lua cannot be parsed".to_owned()))
}
