//! What a session is made with.

use crate::class::Class;
use crate::lanes::PortId;
use crate::time::Span;

/// Sizes and limits of one session. Values marked *agreed* must be the same at both ends; the bootstrap sees to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// Number that both ends carry in every control message of the session. Agreed.
    pub nonce: u64,
    /// Longest message, in bytes, that may travel inside a control message: 0..=32,768. Agreed.
    pub eager_max: u32,
    /// Eager messages that this end keeps for receives that are not posted yet: 4..=16,384. Agreed.
    pub eager_buffers: u16,
    /// Receives that each end keeps posted on a control lane, and messages that may be under way on it: 16..=4,096. Agreed.
    pub control_slots: u16,
    /// Receives without buffer that each end keeps posted on a data lane: 16..=32,768. Agreed.
    pub immediates: u16,
    /// Work requests that may be outstanding on a data lane: 1..=32,768. Lanes must be made with at least this depth.
    pub send_depth: u16,
    /// Bytes that a data lane may have in flight at the start.
    pub initial_window: u32,
    /// Bytes that a data lane may ever have in flight.
    pub max_window: u32,
    /// Least bytes of a chunk when a message is split only in order to use idle lanes; the latency class goes lower.
    pub split_floor: u32,
    /// Channels whose state is allocated at creation.
    pub channels: usize,
    /// Channels that may ever exist; the peer cannot make more.
    pub max_channels: usize,
    /// Messages (sends and one-sided operations) that may be outstanding, at most 65,536.
    pub max_sends: usize,
    /// Receives that may be outstanding, at most 65,536.
    pub max_receives: usize,
    /// Receives that may be granted at once: 4..=4,096.
    pub slots: u16,
    /// A lane that is silent for this long while others deliver is given up (and for eight of its round trips).
    pub silence: Span,
    /// How many deliveries over others that takes.
    pub deliveries: u32,
    /// How long a session lives without a word from the peer.
    pub session_timeout: Span,
    /// Lanes that were given up are made anew: the driver must carry out [`LaneCommand::Make`](super::LaneCommand::Make).
    pub rebuild: bool,
    /// Grant every receive when it is posted, also one that an eager message could fill.
    pub grant_always: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        SessionConfig {
            nonce: 0,
            eager_max: 4096,
            eager_buffers: 256,
            control_slots: 64,
            immediates: 256,
            send_depth: 256,
            initial_window: 128 << 10,
            max_window: 256 << 10,
            split_floor: 16 << 10,
            channels: 64,
            max_channels: 1 << 16,
            max_sends: 1 << 16,
            max_receives: 1 << 16,
            slots: 1 << 12,
            silence: Span::from_millis(20),
            deliveries: 16,
            session_timeout: Span::from_secs(30),
            rebuild: false,
            grant_always: false,
        }
    }
}

impl SessionConfig {
    /// The same with every value in its range.
    #[must_use]
    pub(super) fn clamped(mut self) -> Self {
        self.eager_max = self.eager_max.min(32 << 10);
        self.eager_buffers = self.eager_buffers.clamp(4, 1 << 14);
        self.control_slots = self.control_slots.clamp(16, 1 << 12);
        self.immediates = self.immediates.clamp(16, 1 << 15);
        self.send_depth = self.send_depth.clamp(1, 1 << 15);
        self.max_window = self.max_window.clamp(1 << 12, 1 << 30);
        self.initial_window = self.initial_window.clamp(1 << 12, self.max_window);
        self.split_floor = self.split_floor.max(1);
        self.slots = self.slots.clamp(4, 1 << 12);
        self.silence = self.silence.max(Span::from_micros(100));
        self.deliveries = self.deliveries.max(1);
        self.max_channels = self.max_channels.clamp(1, 1 << 24);
        self.channels = self.channels.min(self.max_channels);
        self.max_sends = self.max_sends.clamp(1, 1 << 16);
        self.max_receives = self.max_receives.clamp(1, 1 << 16);
        self
    }

    /// Bytes of one control message at most: header, one eager record of full length, and room for a few others.
    pub(super) fn slot_bytes(&self) -> u32 {
        (self.eager_max + 256).next_multiple_of(128).max(512)
    }
}

/// What a lane carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    /// SENDs: control records and eager messages.
    Control,
    /// WRITEs with immediate, WRITEs, READs.
    Data,
}

/// A lane's part in its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LaneRole {
    /// The local port it starts from.
    pub port: PortId,
    /// The peer's port that it ends at, 0..8: selects the key of a grant.
    pub peer_port: u8,
    /// The class it serves.
    pub class: Class,
    /// What it carries.
    pub kind: LaneKind,
    /// The lane's number, the same at both ends and unique in the session: 0..4,096.
    pub peer_index: u16,
    /// The RoCE MTU both ends settled on, in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// Counts how often this `peer_index` was made anew; the same at both ends.
    pub generation: u16,
}
