//! States with and without a time to live, in event time and in processing time, are not taken for
//! each other; another length of the time to live holds for what is there.

use std::time::Duration;

use alluvium::io::{Faults, Simulated};
use alluvium::time::nanos;
use alluvium::{ErrorKind, Result, Store, Time, Ttl};

use crate::common::{HandClock, builder, layouts};

#[test]
fn what_was_written_as_one_kind_is_not_opened_as_another() {
    let (event, processing) = (Ttl::event_time(nanos(100)), Ttl::processing_time(nanos(100)));
    for (layout, memory) in layouts() {
        let clock = HandClock::default();
        let device = Simulated::new(1, Faults::none());
        let store = |device: &Simulated| {
            builder(device, 4 * memory, &clock).layout(layout.clone()).open().unwrap()
        };
        let first = store(&device);
        first.map::<u64, u64>("plain").open().unwrap().put(1, 1).unwrap();
        first.expiring_map::<u64, u64>("event").open(event).unwrap().put(1, 1).unwrap();
        first.expiring_map::<u64, u64>("clock").open(processing).unwrap().put(1, 1).unwrap();
        first.expiring_value::<u64>("value").open(event).unwrap().set(1).unwrap();
        first.checkpoint(1).unwrap();
        drop(first);
        type Open<'a> = &'a dyn Fn(&Store) -> Result<()>;
        let refused: [(&str, Open<'_>, [&str; 2]); 6] = [
            (
                "plain map as event",
                &|s| s.expiring_map::<u64, u64>("plain").open(event).map(drop),
                ["is map,", "map expiring in event time"],
            ),
            (
                "event as plain map",
                &|s| s.map::<u64, u64>("event").open().map(drop),
                ["is map expiring in event time,", "requested is map"],
            ),
            (
                "event as processing",
                &|s| s.expiring_map::<u64, u64>("event").open(processing).map(drop),
                ["map expiring in event time", "map expiring in processing time"],
            ),
            (
                "processing as event",
                &|s| s.expiring_map::<u64, u64>("clock").open(event).map(drop),
                ["map expiring in processing time", "map expiring in event time"],
            ),
            (
                "a value as a map",
                &|s| s.expiring_map::<(), u64>("value").open(event).map(drop),
                ["value expiring in event time", "map expiring in event time"],
            ),
            (
                "other values",
                &|s| s.expiring_map::<u64, u32>("event").open(event).map(drop),
                ["Timed@1{touched:Time,value:u64,}", "Timed@1{touched:Time,value:u32,}"],
            ),
        ];
        for (what, open, names) in refused {
            let store = store(&device);
            let error = open(&store).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: {error}");
            let text = error.to_string();
            assert!(names.iter().all(|name| text.contains(name)), "{what}: {text}");
            // Nothing of the refused state is open.
            assert_eq!(store.stats().unwrap().states.len(), 0, "{what}");
        }
        let store = store(&device);
        assert_eq!(
            store.expiring_value::<u64>("value").open(event).unwrap().take().unwrap(),
            Some(1)
        );
        for (ttl, what) in [(Duration::ZERO, "0 ns"), (Duration::MAX, "292 years or more")] {
            let open = store.expiring_map::<u64, u64>("new");
            let error = open.open(Ttl::event_time(ttl)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}

#[test]
fn another_time_to_live_holds_for_what_is_there() {
    for (layout, memory) in layouts() {
        let (device, clock) = (Simulated::new(1, Faults::none()), HandClock::default());
        let open = |live| {
            let store = builder(&device, memory, &clock).layout(layout.clone()).open().unwrap();
            let ttl = Ttl::event_time(nanos(live));
            let map = store.expiring_map::<u64, u64>("m").open(ttl).unwrap();
            (store, map)
        };
        let (store, mut map) = open(100);
        map.advance(Time(0)).unwrap();
        map.advance(Time(1000)).unwrap();
        map.put(1, 1).unwrap();
        map.advance(Time(1050)).unwrap();
        store.checkpoint(1).unwrap();
        drop((map, store));
        for (nanos, there) in [(50, false), (51, true), (1000, true)] {
            let (_store, mut map) = open(nanos);
            assert_eq!(map.contains(&1).unwrap(), there, "{nanos} ns");
        }
    }
}
