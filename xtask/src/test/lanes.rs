// SPDX-License-Identifier: MIT OR Apache-2.0

//! Parallel tasks, as many at a time as the machine has cores and memory for.

use crate::report::Report;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Instant;

/// Free memory that each worker needs, for its guests and a build beside them.
const MEMORY: u64 = 6 << 30;
/// Maximum number of workers; more have not been tried.
const MOST: usize = 2;

/// A task for a worker.
pub(super) struct Task<'a> {
    /// The row of the final table to which the task's time is added.
    stage: String,
    run: Box<dyn FnOnce() + Send + 'a>,
}

impl<'a> Task<'a> {
    /// Returns a task whose time is added to the row `stage`.
    pub(super) fn new(stage: impl Into<String>, run: impl FnOnce() + Send + 'a) -> Self {
        Self {
            stage: stage.into(),
            run: Box::new(run),
        }
    }
}

/// Returns the number of workers for this machine.
pub(super) fn count() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let room = usize::try_from(free_memory() / MEMORY).unwrap_or(MOST);
    cores.min(room).clamp(1, MOST)
}

/// Runs the tasks in order with `lanes` workers, until all have ended.
pub(super) fn run(tasks: Vec<Task<'_>>, lanes: usize, report: &Report) {
    let queue = Mutex::new(VecDeque::from(tasks));
    let next = || queue.lock().ok()?.pop_front();
    let lane = || {
        while let Some(task) = next() {
            let started = Instant::now();
            (task.run)();
            report.stage(&task.stage, started.elapsed());
        }
    };
    // QEMU ends with the thread that started it, so each worker is one thread to the end.
    std::thread::scope(|scope| {
        for _ in 0..lanes.max(1) {
            scope.spawn(lane);
        }
    });
}

/// Returns the available memory of this machine in bytes.
pub(super) fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    text.lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(0, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn two_lanes_run_two_tasks_at_once() {
        let report = Report::new(None).unwrap();
        // Each task waits for the other, so a single worker would never end.
        let both = Barrier::new(2);
        let task = || {
            Task::new("a", || {
                both.wait();
            })
        };
        run(vec![task(), task()], 2, &report);
    }

    #[test]
    fn one_lane_runs_tasks_in_their_order() {
        let report = Report::new(None).unwrap();
        let seen = Mutex::new(Vec::new());
        let seen_in = &seen;
        let task = |n: u32| Task::new("a", move || seen_in.lock().unwrap().push(n));
        run((0..5).map(task).collect(), 1, &report);
        assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
    }
}
