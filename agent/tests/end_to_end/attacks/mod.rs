//! Ways around limits, and ways to turn Weir on others, as an attacker would try them: one file a kind.

mod counts;
mod neighbours;
pub mod peer;
mod proofs;
mod protected;
mod published;
mod requests;
mod veth;
mod weapons;

use testbed::trials::Test;

/// A table of tests, under the names of their modules.
macro_rules! attacks {
    ($($module:ident::$test:ident),* $(,)?) => {
        &[$((concat!("attacks::", stringify!($module), "::", stringify!($test)), $module::$test as fn())),*]
    };
}

/// Tests whose results depend on the kernel.
pub const TESTS: &[Test] = attacks![
    proofs::an_ack_in_fragments_is_evaluated_by_its_header,
    counts::hidden_handshakes_open_no_connection,
    proofs::an_ack_behind_extension_headers_is_checked_by_its_cookie,
    proofs::a_cookie_opens_no_second_connection_free_of_charge,
    counts::fragmented_acks_reserve_open_connections,
    proofs::a_client_whose_connection_is_refused_learns_it_at_once,
    veth::clients_connect_in_a_flood_to_a_veth_whose_peer_has_no_program,
    weapons::syns_that_the_kernel_drops_are_charged_to_nobody,
    weapons::syns_without_a_proof_ban_nobody,
    weapons::packets_in_a_gateways_name_have_a_limit,
    weapons::syns_in_a_gateways_name_have_to_be_proven,
    weapons::syns_to_a_closed_port_are_charged_to_nobody,
    weapons::syns_that_the_kernel_drops_are_not_challenged,
    requests::requests_count_in_every_form_that_servers_take,
    weapons::addresses_with_chosen_bits_share_no_allowance,
    protected::packets_in_a_resolvers_name_have_a_limit_and_ban_nobody,
    protected::resolvers_are_followed,
    protected::no_ban_applies_to_the_hosts_own_addresses,
    protected::a_neighbour_cannot_have_all_link_local_addresses_banned,
    protected::requests_in_the_name_of_a_gateway_are_limited_and_ban_nobody,
    neighbours::a_flood_of_arp_from_one_sender_leaves_others_answered,
    neighbours::arp_from_made_up_senders_passes_up_to_the_allowances_of_all,
    neighbours::a_flood_of_discovery_or_dhcp_from_one_sender_leaves_others_theirs,
    weapons::single_segments_ban_nobody_and_those_of_a_connection_do,
];
/// Tests that require nft.
pub const WITH_NFT: &[Test] = attacks![
    counts::redirected_connections_count_by_their_original_port,
    published::clients_of_a_published_port_connect_in_a_flood_and_without,
    published::a_limit_on_open_connections_says_that_it_counts_none_of_a_published_port,
    published::a_port_is_left_alone_while_a_rule_of_any_form_translates_it,
    published::a_published_port_is_learnt_from_its_connections,
    published::a_published_port_is_learnt_from_a_connection_that_fails,
    published::proven_connections_that_a_firewall_drops_are_reported,
    published::clients_connect_by_whatever_their_port_is_translated,
];
