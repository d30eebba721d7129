//! What is said of each layout before a state is opened is what opening it there does.

mod memory;
mod slices;

use alluvium::config::{Explanation, Helpers};
use alluvium::time::nanos;
use alluvium::{AnyLayout, Counting, Elements, KIB, MIB, SECOND, Store, Windows, process};

const NAMES: [&str; 4] = ["heap", "hybrid-log", "append-log", "window-segments"];

fn store(memory: u64, layout: AnyLayout) -> Store {
    let builder = Store::in_memory().memory(memory).max_value(4 * KIB).layout(layout);
    builder.helpers(Helpers::Inline).open().unwrap()
}

/// Opens the state in each layout, and compares that with what is said of it.
fn check<S>(
    memory: u64,
    explain: impl Fn(&Store) -> Explanation,
    open: impl Fn(&Store) -> alluvium::Result<S>,
    part: &str,
) -> (usize, String) {
    let said = explain(&store(memory, AnyLayout::Auto));
    for name in NAMES {
        let layout = AnyLayout::named(name).unwrap();
        let store = store(memory, layout);
        let used = store.stats().unwrap().memory.used;
        assert_eq!(explain(&store).layouts, said.layouts);
        assert_eq!(store.stats().unwrap().memory.used, used, "what was tried is given back");
        let chosen = explain(&store).chosen;
        let opened = open(&store);
        let states = store.stats().unwrap().states;
        let kept = states.iter().find(|state| state.name == part).map(|state| &*state.layout);
        let fit = said.layouts.iter().find(|fit| fit.layout == name).unwrap();
        let is_there = opened.is_ok() && kept == Some(name);
        assert_eq!(fit.fits, is_there, "{memory}: {said}{name} is kept in {kept:?}");
        assert!(opened.is_err() || kept == Some(chosen), "{said}: {kept:?} {chosen}");
        assert!(said.to_string().contains(&fit.reason));
    }
    if let Some(auto) = said.layouts.iter().find(|fit| fit.layout == said.auto)
        && auto.fits
    {
        let store = store(memory, AnyLayout::Auto);
        let _opened = open(&store).unwrap();
        let states = store.stats().unwrap().states;
        assert!(states.iter().any(|state| state.name == part && state.layout == said.auto));
    }
    (said.layouts.iter().filter(|fit| fit.fits).count(), said.to_string())
}

#[test]
fn what_is_said_of_layouts_is_what_opening_does() {
    let first = |_: &u64, _, elements: &mut dyn Elements<u64>, emit: &mut dyn FnMut(u64)| {
        elements.next()?.copied().into_iter().for_each(emit);
        Ok(())
    };
    // With plenty of memory, and with too little for those that page.
    for (memory, fitting) in [(16 * MIB, [2, 2, 3, 2, 2, 2]), (24 * KIB, [1; 6])] {
        let hop = Windows::sliding(nanos(30 * SECOND), nanos(SECOND));
        let visit = Windows::session(nanos(SECOND));
        let of_windows = |windows: Windows| {
            check(
                memory,
                |store| store.aggregated::<u64, (), Counting>("s").explain(windows),
                |store| store.aggregated::<u64, (), _>("s").open(windows, Counting),
                "s",
            )
        };
        let of_events = |windows: Windows| {
            check(
                memory,
                |store| store.holistic::<u64, u64>("s").explain(windows),
                |store| store.holistic::<u64, u64>("s").open(windows, process(first)),
                "s",
            )
        };
        let map = check(
            memory,
            |store| store.map::<u64, u64>("s").explain(),
            |store| store.map::<u64, u64>("s").open(),
            "s",
        );
        let list = check(
            memory,
            |store| store.list::<u64, u64>("s").explain(),
            |store| store.list::<u64, u64>("s").open(),
            "s",
        );
        let all = [
            map,
            list,
            of_windows(Windows::tumbling(nanos(SECOND))),
            of_windows(visit),
            of_events(hop),
            of_events(visit),
        ];
        let counts: Vec<_> = all.iter().map(|(fitting, _)| *fitting).collect();
        assert_eq!(counts, fitting, "{all:#?}");
        if memory < MIB {
            assert!(all.iter().all(|(_, text)| text.contains("need")), "{all:#?}");
        }
    }
}

#[test]
fn a_name_that_is_open_fits_nothing() {
    let store = store(MIB, AnyLayout::Auto);
    let _open = store.map::<u64, u64>("s").open().unwrap();
    let said = store.list::<u64, u64>("s").explain();
    assert!(said.layouts.iter().all(|fit| !fit.fits), "{said}");
    assert!(said.to_string().contains("open already"), "{said}");
}

#[test]
fn it_is_a_short_table() {
    let store = store(16 * MIB, AnyLayout::Auto);
    let said = store.map::<u64, u64>("best-bid").explain().to_string();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 6, "{said}");
    assert_eq!(lines[0], "best-bid: a map, kept in hybrid-log; auto takes hybrid-log");
    assert!(lines[2].starts_with("heap             yes   the shortest way"), "{said}");
    assert!(lines[4].starts_with("append-log       no    it keeps lists"), "{said}");
}
