//! A checkpoint of a table on the heap is of its barrier, whatever happens between its steps.
//!
//! What this catches: entries in it as they were later, twice, or not at all, because they changed,
//! went, came again, or moved as the table grew or was cleared; memory not given back or above the
//! budget; a barrier that grows with the keys; files of abandoned attempts left over.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use alluvium_layouts::{CheckpointOutcome, Cursor, Heap, Layout, StateContext, Table, Upkeep};
use alluvium_pagestore::io::{Device, Faults, Simulated};
use alluvium_pagestore::{
    Account, BlobReader, BlobWriter, ErrorKind, Helper, KeyHash, SegmentStore, StateImage,
    hash_word,
};

/// One hash table, and one in the order of hashes.
trait Kind: Layout<u64, String> + Default {}

impl Kind for Heap {}

type Model = BTreeMap<u64, String>;

struct Ground {
    device: Simulated,
    account: Rc<Account>,
    helper: Helper,
    chance: u64,
}

impl Ground {
    fn new(seed: u64, memory: u64) -> Self {
        let device = Simulated::new(seed, Faults::late(2));
        Self {
            device,
            account: Account::root(memory),
            helper: Helper::inline(),
            chance: seed << 32,
        }
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.chance += 1;
        hash_word(hash_word(self.chance)) % limit
    }

    fn open<L: Kind>(&self, image: Option<StateImage>) -> L::Table {
        let device: Arc<dyn Device> = Arc::new(self.device.clone());
        let restored = image.map(|image| (image, BlobReader::new(device.clone())));
        let context = StateContext {
            name: "table".into(),
            account: Account::below(&self.account, "table", u64::MAX),
            segments: Some(SegmentStore::new(device, self.device.steps() + 1)),
            helper: self.helper.clone(),
            max_value_bytes: 4096,
            key_groups: 256,
            owned: 0..256,
            movable: false,
            restored,
        };
        L::default().open(context).unwrap()
    }

    fn blobs(&self) -> BlobWriter {
        BlobWriter::new(Arc::new(self.device.clone()), 1, 4096)
    }

    /// One seeded change of both, of keys below `keys`.
    fn change(&mut self, table: &mut impl Table<u64, String>, model: &mut Model, keys: u64) {
        let (key, n) = (self.below(keys), self.below(1000));
        let word = format!("{n} ").repeat(1 + n as usize % 9);
        match self.below(1000) {
            0..=349 => {
                table.put(key, word.clone()).unwrap();
                model.insert(key, word);
            }
            350..=599 => {
                table.update(&key, String::new, |value| value.push('u')).unwrap();
                model.entry(key).or_default().push('u');
            }
            600..=749 => {
                let found = table.modify(&key, |value| value.insert(0, 'm')).unwrap();
                let known = model.get_mut(&key).map(|value| value.insert(0, 'm'));
                assert_eq!(found, known);
            }
            750..=994 => assert_eq!(table.take(&key).unwrap(), model.remove(&key)),
            _ => {
                if self.below(20) == 0 {
                    table.clear().unwrap();
                    model.clear();
                }
            }
        }
    }
}

fn entries(table: &mut impl Table<u64, String>) -> Model {
    let (mut found, mut cursor) = (Model::new(), Cursor::default());
    while !cursor.done {
        table
            .scan(&mut cursor, 100, &mut |key, value| {
                assert_eq!(found.insert(*key, value.clone()), None);
                Ok(())
            })
            .unwrap();
    }
    found
}

#[test]
fn changes_between_its_steps_are_not_in_it() {
    changed_between_its_steps::<Heap>();
}

fn changed_between_its_steps<L: Kind>() {
    for (seed, memory) in [(1, 64 << 20), (2, 64 << 20), (3, 640 << 10), (4, 560 << 10)] {
        let mut ground = Ground::new(seed, memory);
        let (mut table, mut model) = (ground.open::<L>(None), Model::new());
        for round in 0..8 {
            // It grows from one to the next, and during some.
            let keys = 300 << (round / 2);
            for _ in 0..2000 {
                ground.change(&mut table, &mut model, keys);
            }
            let (then, mut blobs) = (model.clone(), ground.blobs());
            assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
            let mut steps = 0;
            let image = loop {
                for _ in 0..60 {
                    ground.change(&mut table, &mut model, 3 * keys);
                    assert!(ground.account.used() <= memory);
                }
                match table.continue_checkpoint(&mut blobs).unwrap() {
                    Some(image) => break image,
                    None => steps += 1,
                }
            };
            let when = format!("seed {seed}, round {round}, {steps} steps");
            assert!(steps >= 1, "{when}");
            assert_eq!(image.entries, then.len() as u64, "{when}");
            table.checkpointed(CheckpointOutcome::Committed);
            assert_eq!(entries(&mut table), model, "{when}");
            drop(table);
            assert_eq!(ground.account.used(), 0, "{when}");
            table = ground.open::<L>(Some(image));
            assert_eq!(entries(&mut table), then, "{when}");
            model = then;
        }
    }
}

#[test]
fn one_that_is_abandoned_or_finds_the_disk_full_at_any_step_leaves_nothing() {
    abandoned_at_any_step::<Heap>();
}

fn abandoned_at_any_step<L: Kind>() {
    for at in 0..12 {
        for full in [false, true] {
            let when = format!("at step {at}, full: {full}");
            let mut ground = Ground::new(9, 64 << 20);
            let (mut table, mut model) = (ground.open::<L>(None), Model::new());
            for _ in 0..3000 {
                ground.change(&mut table, &mut model, 2000);
            }
            let mut blobs = ground.blobs();
            let mut taken = table.begin_checkpoint(&mut blobs).unwrap();
            for _ in 0..at {
                if taken.is_none() {
                    taken = table.continue_checkpoint(&mut blobs).unwrap();
                }
                ground.change(&mut table, &mut model, 2000);
            }
            if full && taken.is_none() {
                ground.device.set_capacity_bytes(Some(ground.device.used_bytes()));
                let error = loop {
                    match table.continue_checkpoint(&mut blobs) {
                        Ok(Some(_)) => break None,
                        Ok(None) => {}
                        Err(error) => break Some(error.kind()),
                    }
                };
                // What was on its way to the device at its end had its room.
                assert!(error == Some(ErrorKind::DiskFull) || at > 2, "{when}: {error:?}");
                ground.device.set_capacity_bytes(None);
            }
            table.checkpointed(CheckpointOutcome::Abandoned);
            // What the helper had is removed by it.
            while ground.helper.drive() {}
            ground.device.drain();
            assert_eq!(ground.device.list().unwrap(), Vec::<String>::new(), "{when}");
            assert_eq!(entries(&mut table), model, "{when}");
            let image = table.checkpoint(&mut blobs).unwrap();
            drop(table);
            assert_eq!(ground.account.used(), 0, "{when}");
            assert_eq!(entries(&mut ground.open::<L>(Some(image))), model, "{when}");
        }
    }
}

#[test]
fn the_barrier_does_nothing_per_key() {
    barrier::<Heap>();
}

fn barrier<L: Kind>() {
    let begin = |keys: u64| {
        let ground = Ground::new(1, 256 << 20);
        let mut table = ground.open::<L>(None);
        for key in 0..keys {
            table.put(key, "value".into()).unwrap();
        }
        let (used, steps) = (ground.account.used(), ground.device.steps());
        assert!(table.begin_checkpoint(&mut ground.blobs()).unwrap().is_none());
        (ground.account.used() - used, ground.device.steps() - steps)
    };
    assert_eq!(begin(10), (0, 0));
    assert_eq!(begin(50_000), (0, 0));
}

/// Key groups that leave between the steps are in it, each entry as it was.
#[test]
fn key_groups_that_are_removed_between_its_steps_are_in_it() {
    for removed_at in 0..4 {
        let mut ground = Ground::new(20 + removed_at, 64 << 20);
        let (mut table, mut model) = (ground.open::<Heap>(None), Model::new());
        for _ in 0..30_000 {
            ground.change(&mut table, &mut model, 12_000);
        }
        let (then, mut blobs) = (model.clone(), ground.blobs());
        assert!(table.begin_checkpoint(&mut blobs).unwrap().is_none());
        let mut step = 0;
        let image = loop {
            if step == removed_at {
                let (mut cursor, half) = (Cursor::default(), 0..=u64::MAX / 2);
                while !cursor.done {
                    table.by_hash().unwrap().remove_hashes((), &half, &mut cursor, 50).unwrap();
                }
                model.retain(|key, _| !half.contains(&key.key_hash()));
            }
            for _ in 0..20 {
                ground.change(&mut table, &mut model, 12_000);
            }
            step += 1;
            if let Some(image) = table.continue_checkpoint(&mut blobs).unwrap() {
                break image;
            }
        };
        assert!(step > removed_at, "removed at step {removed_at}: {step} steps");
        table.checkpointed(CheckpointOutcome::Committed);
        assert_eq!(entries(&mut table), model, "removed at step {removed_at}");
        drop(table);
        assert_eq!(ground.account.used(), 0, "removed at step {removed_at}");
        let mut table = ground.open::<Heap>(Some(image));
        assert_eq!(entries(&mut table), then, "removed at step {removed_at}");
    }
}
