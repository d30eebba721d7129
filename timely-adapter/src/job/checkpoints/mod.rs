//! Checkpoints of a whole job: all stores at one point of the input, committed once.
//!
//! One checkpoint goes through these steps, each of which ends when all workers are through it:
//! 1. *Agree*: each says a time after all that it has sent, which its inputs know ([`input`]); the
//!    latest of these is where all stop.
//! 2. *Align*: each sends what it has before that time, moves its inputs to that time exactly, and
//!    steps until the probe is there too. Then everything sent is applied, whatever had to wait for
//!    reads included, and nothing is under way between workers: what fires because the watermark
//!    has come to a time is sent at times before it. If inputs stood at different times, what the
//!    least of them lets fire could be on its way still. Key groups that move at that time begin to
//!    once all stores are sealed. Only here and in step 3 the input stands still.
//! 3. *Seal*: each begins a checkpoint of its store, and its sinks end their parts. Once all have, the
//!    input goes on.
//! 4. *Write*: each store's checkpoint becomes durable, in steps between those of the worker; helpers
//!    make what the sinks have written durable.
//! 5. *Commit*: the first worker's helper replaces the job's record, one small file. That is the
//!    point at which the checkpoint counts.
//! 6. *Confirm*: the stores are told, and let go of an older one; their helpers write, and make the
//!    sinks' parts visible.
//!
//! A worker that has sent all it has holds back the watermark with its input, which must not be
//! closed before all have ended, as a checkpoint may still be asked for. It is moved along with the
//! others: once one has ended, they say where they stand now and then, and its input follows the
//! least of them. So it is never past the time at which they agree to stop.
//!
//! What it keeps true: whenever the run ends, and however, what the record names can be restored on
//! all workers. A store's checkpoint is removed only while nobody can have committed it, or after
//! the record names a later one. It leaves to the driver what is sent, and to
//! [`restore`] what a run begins with.

mod commit;
pub(crate) mod directories;
mod input;
mod phase;
mod record;
pub(crate) mod restore;

use std::fmt;
use std::mem;
use std::rc::Rc;
use std::time::{Duration, Instant};

use alluvium::states::Aside;
use alluvium::{Error, ErrorKind, Result, Time};
use timely::ExchangeData;
use timely::dataflow::{InputHandleVec, ProbeHandle};

use crate::event_time::EventTime;
use crate::intake::gated_source::GatedSource;
use crate::job::worker::WorkerState;
use directories::Removal;
pub use input::JobInput;
pub(crate) use input::Sent;
use phase::{JobPhase, WorkerPart, drop_finished, is_of_one, note_of, of_note, passing};
pub(crate) use record::{COMMITTED, JobRecord};
pub use record::{JobCheckpoint, WorkerCheckpoint};

/// Checkpoints that a store retains at least: the job's last, and the one before it, as the record
/// may say either when a store has confirmed the later one.
pub(crate) const RETAIN_MIN: usize = 2;

/// What a worker may do until it asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Send freely.
    Go,
    /// Send what you have before this time, and nothing at or after it. Then advance all inputs to
    /// exactly this time, and step. A worker with nothing more to send gets this again and again
    /// while the others continue: the watermark waits for its inputs too.
    Until(Time),
    /// Call [`JobCheckpoints::seal`] before the next step: everything sent is applied.
    Seal {
        /// Number of the checkpoint if it is committed. An aborted checkpoint leaves its number to
        /// the next.
        number: u64,
        /// Time of the checkpoint: it contains exactly what was sent before.
        until: Time,
    },
    /// Step, without sending or advancing an input: other workers are not ready.
    Wait,
    /// Send nothing more and ask no more: all workers have ended. The time is after everything that
    /// any of them has sent, and no input is past it.
    End(Time),
}

/// One worker's part in the checkpoints of a job started with [`execute`](crate::execute()).
///
/// A worker makes one when its dataflows are built, asks for its [`turn`](JobCheckpoints::turn)
/// before each step, and does as that says. What the worker sends goes through [`JobInput`]s, which
/// know the times of its rows. While a checkpoint is under way the workers meet in
/// here, so that a job has no [meetings](WorkerState::meet) of its own between its first turn and
/// [`Turn::End`].
///
/// A run in the same directories goes on from the last checkpoint that was committed:
/// [`WorkerState::restored`] has it, with where each worker's input went on. Nothing that came
/// after it is there then, in no store. The run may have another number of workers and of processes:
/// the stores are made anew then, and positions are those of other workers. It sends nothing before
/// the checkpoint's [`until`](JobCheckpoint::until).
///
/// ```
/// use alluvium::{Error, StoreConfig, Time};
/// use alluvium_timely::{Counting, JobCheckpoints, KeyBy, Rolling, Spec, Turn, execute};
/// use timely::dataflow::ProbeHandle;
/// use timely::dataflow::operators::Probe;
/// use timely::dataflow::operators::vec::Input;
///
/// # let place = tempfile::tempdir().unwrap();
/// let store = StoreConfig { directory: Some(place.path().into()), ..StoreConfig::default() };
/// execute(timely::Config::process(2), store.into(), |worker, state| {
///     let probe = ProbeHandle::new();
///     let input = worker.dataflow::<i64, _, _>(|scope| {
///         let (input, rows) = scope.new_input::<i64>();
///         rows.key_by(state, |row| row % 10)
///             .rolling(Spec::new("counts"), Counting)?
///             .probe_with(&probe);
///         Ok::<_, Error>(input)
///     })?;
///     // Worker w has the numbers w, w + 2, ... up to 100, each at its own time.
///     let done = state.restored().map_or(0, |all| all.until.0);
///     let mut next = (done..).find(|number| number % 2 == state.index() as i64).unwrap();
///     let mut job = JobCheckpoints::new(state, probe)?;
///     let mut input = job.input(input);
///     loop {
///         if next == 50 && job.committed().is_none() && !job.is_busy() {
///             job.request();
///         }
///         match job.turn(next >= 100)? {
///             Turn::Go if next < 100 => {
///                 input.send(Time(next), next)?;
///                 next += 2;
///                 input.advance_to(Time(next))?;
///             }
///             Turn::Go | Turn::Wait => {}
///             Turn::Until(until) => {
///                 while next < until.0.min(100) {
///                     input.send(Time(next), next)?;
///                     next += 2;
///                 }
///                 input.advance_to(until)?;
///             }
///             Turn::Seal { .. } => job.seal(&[next as u64])?,
///             Turn::End(_) => break,
///         }
///         state.step(worker)?;
///     }
///     assert!(job.committed().is_some());
///     Ok(())
/// })?;
/// # Ok::<(), alluvium::Error>(())
/// ```
pub struct JobCheckpoints<T: EventTime> {
    state: WorkerState,
    probe: ProbeHandle<T>,
    /// What the worker's inputs have sent.
    sent: Rc<Sent>,
    /// Checkpoints that all workers have begun, aborted ones too.
    begun: u64,
    /// Where the inputs stood at the last of them: none is before it.
    stood_at: Time,
    phase: JobPhase,
    /// When this worker has said last where it stands, and where; only once another one has ended.
    told: Option<(Instant, Time)>,
    committed: Option<JobCheckpoint>,
    abandoned: Option<String>,
    /// What nobody needs any more since the last commit.
    removal: Option<Removal>,
    /// Sinks making visible what was committed, and the note of a job that begins being made.
    showing: Vec<Aside<()>>,
    /// The checkpoint under way began, or the last one, when all workers had ended.
    is_last: bool,
    /// The sinks show all there is, or there are none.
    is_shown: bool,
    /// When the input was stopped.
    stopped: Instant,
    pause: Duration,
}

/// Turns that a checkpoint waits for key groups that have moved.
const TURNS_MAX: u32 = 1000;
/// How often a worker says where it stands, at most.
const TELL_EVERY: Duration = Duration::from_millis(5);

impl<T: EventTime> JobCheckpoints<T> {
    /// Starts to take checkpoints of the job of `state`; `probe` is behind everything that its inputs
    /// lead to.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] without a directory, and for a job that was not started with
    /// [`execute`](crate::execute()); [`ErrorKind::Missing`] if the store has come with a checkpoint and
    /// the job's record is not there: its input would begin anew over old state.
    pub fn new(state: &WorkerState, probe: ProbeHandle<T>) -> Result<Self> {
        if !state.is_in_group() {
            let message = "job checkpoints need a job started with `execute`";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if !state.place().has_device() {
            let message = "a job without a directory takes no checkpoints";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        state.check_recorded()?;
        let mut showing = Vec::new();
        if state.index() == 0 && state.restored().is_none() {
            let begin = state.place().begin_record();
            // A device that fails shows with the first checkpoint; nothing else needs the note.
            let job = move || {
                let _ = begin();
                Ok(())
            };
            showing.push(state.store().aside("the job's record", job));
        }
        // What a run goes on from is never before what it has.
        let begin = state.restored().map_or(Time::MIN, |all| all.until);
        Ok(Self {
            state: state.clone(),
            probe,
            sent: Sent::from(begin),
            begun: 0,
            stood_at: begin,
            phase: JobPhase::Idle,
            told: None,
            committed: state.restored().cloned(),
            abandoned: None,
            removal: None,
            showing,
            is_last: false,
            is_shown: state.sinks().is_empty(),
            stopped: Instant::now(),
            pause: Duration::ZERO,
        })
    }

    /// Takes over an input of the job, so that checkpoints know what it sends. Every input that
    /// leads to state must be one of these, or a source that they [`follow`](Self::follow). A run
    /// that resumes moves the input to the time of its checkpoint.
    pub fn input<D: Clone + 'static>(&self, input: InputHandleVec<T, D>) -> JobInput<T, D> {
        JobInput::new(input, self.sent.clone(), self.begin())
    }

    /// Does the same for a source that has a gate and may be idle.
    pub fn follow<D: ExchangeData + Clone>(&self, source: &mut GatedSource<T, D>) {
        source.be_followed(self.sent.clone(), self.begin());
    }

    /// Where the run begins.
    fn begin(&self) -> Time {
        self.state.restored().map_or(Time::MIN, |all| all.until)
    }

    /// Asks all workers for a checkpoint: the next that has not begun. Any worker may ask, and
    /// asking twice is asking once. Cheap.
    pub fn request(&self) {
        self.state.group().ask(self.begun + 1);
    }

    /// Returns whether a checkpoint is in progress or requested.
    pub fn is_busy(&self) -> bool {
        !matches!(self.phase, JobPhase::Idle | JobPhase::Finishing(_) | JobPhase::Ended(_))
            || self.is_asked()
    }

    /// Returns the last committed checkpoint, of this run or the run it resumes. It is durable: a
    /// source may forget what is before it.
    pub fn committed(&self) -> Option<&JobCheckpoint> {
        self.committed.as_ref()
    }

    /// Returns why the last checkpoint was aborted, if it was: for instance a full disk, or no
    /// memory. The run continues, and the checkpoint before it still counts.
    pub fn abandoned(&self) -> Option<&str> {
        self.abandoned.as_deref()
    }

    /// Returns how long the input stood still for the last checkpoint.
    pub fn pause(&self) -> Duration {
        self.pause
    }

    fn has_moving_groups(&self) -> bool {
        self.state.store().moved_units().is_err()
    }

    fn is_asked(&self) -> bool {
        self.state.group().asked() > self.begun
    }

    /// Goes on with what is under way, as far as it goes without waiting, and says what the worker
    /// may do. `ended` is whether it has nothing more to send, for good.
    ///
    /// Cost when nothing is under way: two loads. One call does a bounded part of the writing, and does
    /// not wait for the device.
    ///
    /// # Errors
    /// Those of the store that do not pass by themselves, and of writing the record; the fault that
    /// ends the run. The run ends with them, and can be started again. With sinks also why the last
    /// checkpoint was given up, the one that all workers have ended before.
    pub fn turn(&mut self, ended: bool) -> Result<Turn> {
        let at = self.sent.reached();
        if self.removal.as_mut().is_some_and(Removal::step) {
            self.removal = None;
        }
        drop_finished(&mut self.showing)?;
        if self.state.group().has_ended_workers() && !ended {
            self.tell_stand(at.max(self.stood_at));
        }
        loop {
            let phase = mem::replace(&mut self.phase, JobPhase::Idle);
            let (next, turn) = self.go_on(phase, at, ended)?;
            self.phase = next;
            if let Some(turn) = turn {
                self.sent.allow(turn);
                return Ok(turn);
            }
        }
    }

    /// Says where this worker stands, for those that have ended.
    fn tell_stand(&mut self, at: Time) {
        let is_new =
            |&(when, before): &(Instant, Time)| before < at && when.elapsed() >= TELL_EVERY;
        if self.told.as_ref().is_none_or(is_new) {
            self.told = Some((Instant::now(), at));
            self.state.group().stand(self.state.index(), at.0);
        }
    }

    /// What a worker does that waits for the others: if it has ended, its input follows them.
    fn wait(&self, at: Time, ended: bool) -> Turn {
        let others = if ended { self.state.group().least_stand(self.state.peers()) } else { None };
        match others.map(Time) {
            Some(others) if others > at.max(self.stood_at) => Turn::Until(others),
            _ => Turn::Wait,
        }
    }

    /// The phase after `phase`, and what the worker may do in it; without that it is to go on.
    fn go_on(
        &mut self,
        phase: JobPhase,
        at: Time,
        ended: bool,
    ) -> Result<(JobPhase, Option<Turn>)> {
        Ok(match phase {
            JobPhase::Idle if ended || self.is_asked() => {
                self.stopped = Instant::now();
                let wants_one = self.is_asked() || ended && !self.is_shown;
                let note = note_of(&(ended, wants_one));
                if ended {
                    self.state.group().end(self.state.index());
                }
                // Key groups that have begun to move arrive before it, and no other moves.
                let at = self.state.barrier().after_moves(at.max(self.stood_at));
                self.state.barrier().stop_at(at);
                (JobPhase::Agreeing(self.state.arrive_saying(at.0, note)?), None)
            }
            JobPhase::Idle => (JobPhase::Idle, Some(Turn::Go)),
            JobPhase::Agreeing(meeting) => match self.state.notes(&meeting) {
                None => (JobPhase::Agreeing(meeting), Some(self.wait(at, ended))),
                Some(said) => (self.agreed(&said)?, None),
            },
            JobPhase::Aligning(until, _) if self.probe.less_than(&T::from_time(until)) => {
                (JobPhase::Aligning(until, 0), Some(Turn::Until(until)))
            }
            // A key group that has come to another worker is known here to have a step later.
            JobPhase::Aligning(until, turns) if turns < TURNS_MAX && self.has_moving_groups() => {
                (JobPhase::Aligning(until, turns + 1), Some(Turn::Until(until)))
            }
            JobPhase::Aligning(until, turns) => {
                let turn = Turn::Seal { number: self.next_number(), until };
                (JobPhase::Aligning(until, turns), Some(turn))
            }
            JobPhase::Sealing(meeting, part) => match self.state.met(&meeting) {
                None => (JobPhase::Sealing(meeting, part), Some(Turn::Wait)),
                Some(_) => {
                    self.state.barrier().lift();
                    self.pause = self.stopped.elapsed();
                    (JobPhase::Writing(part), None)
                }
            },
            JobPhase::Writing(part) => self.write(part)?,
            JobPhase::Written(meeting, part) => match self.state.notes(&meeting) {
                None => (JobPhase::Written(meeting, part), Some(Turn::Go)),
                Some(said) => (self.decide(part, &said)?, None),
            },
            JobPhase::Committing(replacing, part, new) => match replacing.poll() {
                None => (JobPhase::Committing(replacing, part, new), Some(Turn::Go)),
                Some(verdict) => (self.replaced(verdict, part, new)?, None),
            },
            JobPhase::Deciding(meeting, part, new) => match self.state.notes(&meeting) {
                None => (JobPhase::Deciding(meeting, part, new), Some(Turn::Go)),
                Some(said) => (self.decided(part, new, &said[0])?, None),
            },
            JobPhase::Confirming(seal) => Self::confirm(seal)?,
            JobPhase::Finishing(latest) if self.showing.is_empty() => {
                (JobPhase::Ended(latest), None)
            }
            JobPhase::Finishing(latest) => (JobPhase::Finishing(latest), Some(Turn::Wait)),
            JobPhase::Ended(latest) => (JobPhase::Ended(latest), Some(Turn::End(latest))),
        })
    }

    /// The number of the next checkpoint that is committed.
    fn next_number(&self) -> u64 {
        self.committed.as_ref().map_or(0, |last| last.number) + 1
    }

    /// All have said how far they are: where they stop, or that all have ended.
    fn agreed(&mut self, said: &[(i64, String)]) -> Result<JobPhase> {
        let latest = Time(said.iter().map(|said| said.0).max().unwrap_or(i64::MIN));
        let (mut goes_on, mut have_ended) = (false, true);
        for (_, note) in said {
            let (ended, asked): (bool, bool) = of_note(note)?;
            goes_on |= asked || !ended;
            have_ended &= ended;
        }
        self.is_last = have_ended;
        if !goes_on {
            self.state.barrier().lift();
            if let Some(removal) = self.removal.take() {
                removal.finish();
            }
            return Ok(JobPhase::Finishing(latest));
        }
        self.state.barrier().stop_at(latest);
        self.begun += 1;
        self.stood_at = latest;
        Ok(JobPhase::Aligning(latest, 0))
    }

    /// Begins the checkpoint of this worker's store: the answer to [`Turn::Seal`]. `position` comes
    /// back from [`WorkerState::restored`]: where this worker's part of the input goes on, and
    /// whatever else is not in the store; its first number is also the store's own position.
    ///
    /// # Errors
    /// Those of [`Store::seal`](alluvium::Store::seal) that neither pass by themselves nor are of want of memory: with
    /// those the checkpoint is given up, and [`abandoned`](JobCheckpoints::abandoned) says why.
    ///
    /// # Panics
    /// If it is not its turn.
    pub fn seal(&mut self, position: &[u64]) -> Result<()> {
        let JobPhase::Aligning(until, _) = mem::replace(&mut self.phase, JobPhase::Idle) else {
            panic!("a store is sealed when it is its turn");
        };
        let first = position.first().copied().unwrap_or_default();
        let seal = passing(self.state.store().seal(first))?;
        let moved = self.state.moved_operators()?;
        let (number, mut rows) = (self.next_number(), Vec::new());
        for sink in self.state.sinks() {
            let work = sink.seal(number)?;
            rows.push(self.state.store().aside("the rows of a sink", work));
        }
        let (position, is_last) = (position.to_vec(), self.is_last);
        let part = WorkerPart { until, position, moved, seal, rows, is_last };
        self.phase = JobPhase::Sealing(self.state.arrive_saying(0, String::new())?, part);
        Ok(())
    }

    /// A step of writing.
    fn write(&self, mut part: WorkerPart) -> Result<(JobPhase, Option<Turn>)> {
        if let Ok(seal) = &mut part.seal {
            match seal.advance() {
                // From now on the others may count on it.
                Ok(true) => seal.keep(),
                Ok(false) => return Ok((JobPhase::Writing(part), Some(Turn::Go))),
                Err(error) if error.kind() == ErrorKind::Backpressure => {
                    return Ok((JobPhase::Writing(part), Some(Turn::Go)));
                }
                Err(error) if is_of_one(error.kind()) => part.seal = Err(error),
                Err(error) => return Err(error),
            }
        }
        drop_finished(&mut part.rows)?;
        if !part.rows.is_empty() {
            return Ok((JobPhase::Writing(part), Some(Turn::Go)));
        }
        let said = match &part.seal {
            Ok(seal) => Ok(WorkerCheckpoint {
                process: self.state.place().home.process.clone(),
                directory: self.state.place().home.directory.clone(),
                number: seal.number(),
                position: part.position.clone(),
                moved: part.moved.clone(),
            }),
            Err(error) => Err(error.to_string()),
        };
        let meeting = self.state.arrive_saying(0, note_of(&said))?;
        Ok((JobPhase::Written(meeting, part), None))
    }
}

impl<T: EventTime> fmt::Debug for JobCheckpoints<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JobCheckpoints")
            .field("begun", &self.begun)
            .field("is_busy", &self.is_busy())
            .field("committed", &self.committed)
            .finish_non_exhaustive()
    }
}
