//! Which worker has a key group at which time.

use std::collections::BTreeMap;

/// Where rows of a group go: the worker, and how often the group had moved by then. The count tells the
/// rows of one stay of the group at a worker from those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub to: u32,
    pub moves: u32,
}

/// The routes of all groups at all times.
#[derive(Debug)]
pub(super) struct Routes<T> {
    /// Before the first of the changes.
    now: Vec<Route>,
    /// From these times on, by group.
    changes: BTreeMap<T, BTreeMap<u16, Route>>,
}

impl<T: Ord + Clone> Routes<T> {
    /// Each group at the worker given for it.
    pub fn new(homes: Vec<u32>) -> Self {
        let now = homes.into_iter().map(|to| Route { to, moves: 0 }).collect();
        Self { now, changes: BTreeMap::new() }
    }

    /// The worker of each group once no row is still to come.
    pub fn into_homes(mut self) -> Vec<u32> {
        self.settle(None);
        self.now.into_iter().map(|route| route.to).collect()
    }

    /// Groups.
    pub fn groups(&self) -> u16 {
        self.now.len() as u16
    }

    /// The route of a group at a time. Cost: a look-up; more while changes are not behind all rows.
    #[inline]
    pub fn at(&self, time: &T, group: u16) -> Route {
        if self.changes.is_empty() {
            return self.now[usize::from(group)];
        }
        let mut before = self.changes.range(..=time).rev();
        let changed = before.find_map(|(_, changes)| changes.get(&group));
        changed.copied().unwrap_or(self.now[usize::from(group)])
    }

    /// Sends a group's rows elsewhere from `time` on, which is not before that of any other change. Gives
    /// the route before and the new one, if that is another.
    pub fn change(&mut self, time: &T, group: u16, to: u32) -> Option<(Route, Route)> {
        let before = self.at(time, group);
        if before.to == to {
            return None;
        }
        let after = Route { to, moves: before.moves + 1 };
        self.changes.entry(time.clone()).or_default().insert(group, after);
        Some((before, after))
    }

    /// No row before `least` is still to come; `None` if no row at all.
    pub fn settle(&mut self, least: Option<&T>) {
        while let Some(first) = self.changes.first_entry() {
            if least.is_some_and(|least| least < first.key()) {
                return;
            }
            for (group, route) in first.remove() {
                self.now[usize::from(group)] = route;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_where_their_group_is_at_their_time() {
        let mut routes = Routes::<i64>::new(vec![0, 0, 1, 1]);
        assert_eq!(routes.at(&0, 3), Route { to: 1, moves: 0 });
        assert_eq!(routes.change(&10, 3, 1), None);
        let moved = Route { to: 0, moves: 1 };
        assert_eq!(routes.change(&10, 3, 0), Some((Route { to: 1, moves: 0 }, moved)));
        let back = Route { to: 1, moves: 2 };
        assert_eq!(routes.change(&20, 3, 1), Some((moved, back)));
        for _ in 0..2 {
            assert_eq!(
                (routes.at(&19, 3), routes.at(&20, 3), routes.at(&99, 3)),
                (moved, back, back)
            );
            assert_eq!(routes.at(&99, 2), Route { to: 1, moves: 0 });
            routes.settle(Some(&19));
        }
        assert_eq!(routes.at(&9, 3), moved, "no such row is still to come");
        routes.change(&30, 0, 1);
        routes.settle(Some(&29));
        assert_eq!(routes.at(&20, 3), back);
        assert_eq!(routes.into_homes(), [1, 0, 1, 1]);
    }
}
