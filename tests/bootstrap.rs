//! The body of the fuzz target `bootstrap`, with bytes of proptest's choice.

use planespray::bootstrap::VERSION_MAX;
use proptest::prelude::*;

#[path = "../fuzz/bodies/bootstrap.rs"]
mod body;

/// The clear 16 bytes that each end begins with, insecure.
fn preamble(role: u8) -> Vec<u8> {
    let mut bytes = b"\x8fSPRAY\r\n".to_vec();
    bytes.extend_from_slice(&[1, 0, VERSION_MAX as u8, 0, 0, role, 0, 0]);
    bytes
}

#[test]
fn nothing_changed_means_both_come_together() {
    body::check(&[2]);
    body::check(&[3, 255, 0, 255, 0]);
}

#[test]
fn one_changed_bit_is_seen() {
    body::check(&[2, 15, 1]);
    body::check(&[3, 40, 128]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn strangers(listens in any::<bool>(), ours in any::<bool>(), noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut bytes = vec![u8::from(listens)];
        if ours {
            bytes.extend_from_slice(&preamble(u8::from(!listens)));
        }
        bytes.extend_from_slice(&noise);
        body::check(&bytes);
    }

    #[test]
    fn attackers_on_the_way(listens in any::<bool>(), changes in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..6)) {
        let mut bytes = vec![2 | u8::from(listens)];
        changes.iter().for_each(|&(distance, mask)| bytes.extend_from_slice(&[distance, mask]));
        body::check(&bytes);
    }
}
