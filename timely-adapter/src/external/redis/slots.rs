//! Slots that follow the key groups of a stream, from server to server.
//!
//! What it keeps true: when a group's slots have followed, all their keys are on the worker's own server. The
//! servers do not know each other, and each serves all slots: which of them has a slot is where the key group
//! is, which the job knows. So nothing has to be agreed on, and each step may be repeated: what a run that was
//! killed has left on its way, between any servers, is brought along. In a Redis Cluster whose nodes know each
//! other, hand-overs that meet would be settled by gossip, and the loser of a slot drops its keys.

use alluvium::moving::KeyGroup;
use alluvium::{Error, ErrorKind, Result};
use redis::ConnectionAddr;

use super::SLOTS;
use super::shards::Shards;

/// Keys moved by one command.
const KEYS_MAX: usize = 100;

/// The slots of a key group.
fn slots_of(group: KeyGroup, groups: u16) -> Result<std::ops::Range<u16>> {
    if groups == 0 || SLOTS % groups != 0 {
        let message =
            format!("key groups are whole slots only if their number, {groups}, divides {SLOTS}");
        return Err(Error::new(ErrorKind::Config, message));
    }
    let each = SLOTS / groups;
    Ok(group.0 * each..(group.0 + 1) * each)
}

impl<E, D> Shards<E, D> {
    /// Brings the keys of a key group's slots to the worker's server, from all others.
    pub(super) fn bring(&mut self, group: KeyGroup, groups: u16) -> Result<()> {
        let slots: Vec<u16> = slots_of(group, groups)?.collect();
        let to = self.config.brings_to.unwrap_or_default();
        for from in (0..self.servers.len()).filter(|from| *from != to) {
            for slot in self.with_keys(from, &slots)? {
                self.move_keys(from, to, slot)?;
            }
        }
        slots.iter().for_each(|slot| self.note(*slot, to));
        Ok(())
    }

    /// Those of some slots of which a server has keys.
    fn with_keys(&mut self, server: usize, slots: &[u16]) -> Result<Vec<u16>> {
        let mut pipe = redis::pipe();
        for slot in slots {
            pipe.cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(slot);
        }
        let counts = self.servers[server]
            .query(&self.config, |connection| pipe.query::<Vec<u64>>(connection))?;
        let counted = slots.iter().zip(counts).filter(|(_, count)| *count > 0);
        Ok(counted.map(|(slot, _)| *slot).collect())
    }

    /// Moves the keys of a slot from one server to another, but for those that say that a table is loaded.
    fn move_keys(&mut self, from: usize, to: usize, slot: u16) -> Result<()> {
        let (host, port) = self.address(to)?;
        let within = self.config.answer_within.as_millis() as u64;
        loop {
            let mut list = redis::cmd("CLUSTER");
            list.arg("GETKEYSINSLOT").arg(slot).arg(KEYS_MAX);
            let mut keys = self.servers[from]
                .query(&self.config, |connection| list.query::<Vec<Vec<u8>>>(connection))?;
            keys.retain(|key| !self.servers.iter().any(|server| server.is_marker(key)));
            if keys.is_empty() {
                return Ok(());
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg(&host).arg(port).arg("").arg(0).arg(within).arg("REPLACE").arg("KEYS");
            migrate.arg(keys);
            let done = self.servers[from]
                .query(&self.config, |connection| migrate.query::<()>(connection));
            // The other server may be away for a while.
            done.map_err(|error| match error.kind() {
                ErrorKind::Mismatch => Error::new(ErrorKind::Io, error.to_string()),
                _ => error,
            })?;
        }
    }

    /// Where other servers reach one.
    fn address(&self, server: usize) -> Result<(String, u16)> {
        match self.servers[server].client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => Ok((host.clone(), *port)),
            other => {
                let message = format!("other servers do not reach the one at {other}");
                Err(Error::new(ErrorKind::Config, message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_groups_are_ranges_of_whole_slots() {
        assert_eq!(slots_of(KeyGroup(255), 256).unwrap(), 16320..16384);
        assert_eq!(slots_of(KeyGroup(0), 16384).unwrap(), 0..1);
        for slot in slots_of(KeyGroup(7), 32).unwrap() {
            assert_eq!(KeyGroup::of(u64::from(slot) << 50, 32), KeyGroup(7));
        }
        assert_eq!(slots_of(KeyGroup(7), 200).unwrap_err().kind(), ErrorKind::Config);
    }
}
