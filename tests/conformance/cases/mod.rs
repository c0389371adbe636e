//! The cases, generic over the backend.

pub(crate) mod atomics;
pub(crate) mod endings;
pub(crate) mod one_sided;
pub(crate) mod queues;
pub(crate) mod signals;
pub(crate) mod traffic;
pub(crate) mod two_sided;
pub(crate) mod windows;

/// Every case as a test of its own, each with a fresh rig.
macro_rules! conformance {
    ($name:ident, $rig:expr) => {
        conformance! { @all $name, $rig;
            two_sided: sends, exact_receives, receives_without_buffer, receives_before_the_connection, late_receives,
                too_long_for_the_receive;
            one_sided: writes, writes_with_immediate, immediates_in_order, reads, read_sees_the_write_before,
                many_reads, many_writes;
            atomics: fetch_and_add, compare_and_swap, contention, misaligned;
            windows: outside, wrapping, revoked, replaced, of_another_domain, without_the_right, never_given,
                across_the_end, revoked_under_way, control;
            queues: full_send_queue, full_receive_queue, deep_pipelining, unknown_lanes, unknown_memory,
                local_bounds, unconnected, long_lived;
            endings: fenced_before_anything_was_sent, fenced_requester, fenced_responder, fenced_unconnected,
                destroyed_with_completions_due, successors, dead_peer;
            signals: round_trips, nothing_sent_twice, no_marks_on_a_clean_link, descriptors_wake;
            traffic: few_lanes, many_lanes;
        }
    };
    (@all $name:ident, $rig:expr; $($group:ident: $($case:ident),+;)+) => {
        mod $name {
            $(mod $group {
                $(#[test]
                fn $case() {
                    crate::cases::$group::$case(&mut $rig);
                })+
            })+
        }
    };
}
