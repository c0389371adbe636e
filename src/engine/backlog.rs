//! Commands that their session could not take yet.

use std::collections::VecDeque;

use super::command::Command;

/// Waiting commands of one session, in order within each stream and without order among streams: a channel that nobody
/// receives on holds up no other.
///
/// Bounded by the operations that its owner may have outstanding. Allocates only when a session is full.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    streams: Vec<Stream>,
}

#[derive(Debug)]
struct Stream {
    kind: Kind,
    commands: VecDeque<Command>,
}

/// What must keep its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Send(u32),
    Receive(u32),
    OneSided,
}

impl Kind {
    pub(super) fn of(command: &Command) -> Kind {
        match command {
            Command::Send(_, message) => Kind::Send(message.channel),
            Command::Receive { channel, .. } => Kind::Receive(*channel),
            Command::Write(..) | Command::Read(..) => Kind::OneSided,
        }
    }
}

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// True if commands wait that `kind` must not overtake.
    pub(super) fn holds_up(&self, kind: Kind) -> bool {
        self.streams.iter().any(|s| s.kind == kind)
    }

    /// True if something waits that a goodbye must not overtake.
    pub(super) fn holds_up_goodbye(&self) -> bool {
        self.streams.iter().any(|s| !matches!(s.kind, Kind::Receive(_)))
    }

    pub(super) fn push(&mut self, command: Command) {
        let kind = Kind::of(&command);
        match self.streams.iter_mut().find(|s| s.kind == kind) {
            Some(stream) => stream.commands.push_back(command),
            None => self.streams.push(Stream { kind, commands: VecDeque::from([command]) }),
        }
    }

    /// Takes out what waits of one kind.
    pub(super) fn take(&mut self, kind: Kind) -> VecDeque<Command> {
        match self.streams.iter().position(|s| s.kind == kind) {
            Some(index) => self.streams.swap_remove(index).commands,
            None => VecDeque::new(),
        }
    }

    /// Gives each stream's commands to `start`, up to the first that it gives back. True if it took any.
    pub(super) fn retry(&mut self, mut start: impl FnMut(Command) -> Result<(), Command>) -> bool {
        let mut any = false;
        self.streams.retain_mut(|stream| {
            while let Some(command) = stream.commands.pop_front() {
                match start(command) {
                    Ok(()) => any = true,
                    Err(back) => {
                        stream.commands.push_front(back);
                        return true;
                    }
                }
            }
            false
        });
        any
    }
}
