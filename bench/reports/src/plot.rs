//! Plots as SVG: axes with their names and units, lines labelled where they end, bars with spread.

use std::fmt::Write;

use crate::number::digits;
use crate::page::escaped;

/// Colours that colour-blind readers tell apart (Okabe and Ito), dark enough for lines on white.
pub const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d1f"];
/// Line patterns, so that colour is not needed.
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 52.0;
/// Where bars begin, and the height of one with the gap below it.
const BAR_LEFT: f64 = 200.0;
const BAR_STEP: f64 = 24.0;

/// A named line.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// Its label.
    pub name: &'a str,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// A named bar.
#[derive(Clone, Debug)]
pub struct Bar<'a> {
    /// Its label.
    pub name: &'a str,
    /// Its length.
    pub value: f64,
    /// The least and the most that were measured.
    pub spread: (f64, f64),
}

/// What an axis shows, with the unit in its name.
#[derive(Clone, Copy, Debug)]
pub enum Axis<'a> {
    /// Equal distances are equal differences. A vertical axis begins at zero.
    Linear(&'a str),
    /// Equal distances are equal ratios. Values that are not above zero are left out.
    Logarithmic(&'a str),
}

/// Draws lines on two logarithmic axes; nothing if there are no points.
pub fn logarithmic(title: &str, [x, y]: [&str; 2], all: &[Line<'_>]) -> String {
    lines(title, [Axis::Logarithmic(x), Axis::Logarithmic(y)], all)
}

/// Draws lines; nothing if there are no points.
pub fn lines(title: &str, [x, y]: [Axis<'_>; 2], all: &[Line<'_>]) -> String {
    let places =
        || all.iter().flat_map(|line| &line.points).filter(|at| x.has(at.0) && y.has(at.1));
    if places().next().is_none() {
        return String::new();
    }
    let x = Scale::of(x, places().map(|at| at.0));
    let y =
        Scale::of(y, places().map(|at| at.1).chain(matches!(y, Axis::Linear(_)).then_some(0.0)));
    let axes = Axes { x, y };
    let mut svg = begin(title, HEIGHT);
    axes.draw(&mut svg);
    let mut labels = Vec::new();
    for (number, line) in all.iter().enumerate() {
        axes.line(&mut svg, number, line, &mut labels);
    }
    label(&mut svg, labels);
    svg + "</svg>\n"
}

/// Draws bars from zero with their values and, as a thin line, their spread; nothing without bars.
pub fn bars(title: &str, unit: &str, all: &[Bar<'_>]) -> String {
    let Some(most) = all.iter().map(|bar| bar.value.max(bar.spread.1)).reduce(f64::max) else {
        return String::new();
    };
    let width = (WIDTH - RIGHT - BAR_LEFT) / if most > 0.0 { most } else { 1.0 };
    let mut svg = begin(title, TOP + BAR_STEP * all.len() as f64 + 36.0);
    for (number, bar) in all.iter().enumerate() {
        let (top, colour) = (TOP + BAR_STEP * number as f64, COLOURS[number % COLOURS.len()]);
        let middle = top + 9.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <rect x=\"{BAR_LEFT}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"18\" fill=\"{colour}\"/>\
             <path d=\"M{:.1} {middle:.1}H{:.1}\" stroke=\"#111\" stroke-width=\"1.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            BAR_LEFT - 8.0,
            middle + 4.0,
            escaped(bar.name),
            bar.value * width,
            BAR_LEFT + bar.spread.0 * width,
            BAR_LEFT + bar.spread.1 * width,
            BAR_LEFT + bar.value.max(bar.spread.1) * width + 8.0,
            middle + 4.0,
            digits(bar.value)
        );
    }
    let down = TOP + BAR_STEP * all.len() as f64;
    let _ = writeln!(
        svg,
        "<path d=\"M{BAR_LEFT} {TOP}V{down:.1}\" stroke=\"#111\"/>\
         <text x=\"{BAR_LEFT}\" y=\"{:.1}\">{}; a thin line goes from the least to the most of the \
         rounds</text>",
        down + 20.0,
        escaped(unit)
    );
    svg + "</svg>\n"
}

/// Makes a file of its own of a plot.
pub fn standalone(svg: &str) -> String {
    svg.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1)
}

fn begin(title: &str, height: f64) -> String {
    let title = escaped(title);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    )
}

impl Axis<'_> {
    fn has(self, value: f64) -> bool {
        matches!(self, Axis::Linear(_)) || value > 0.0
    }
}

/// An axis with its ends: of powers of ten if it is logarithmic.
struct Scale {
    name: String,
    is_logarithmic: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(axis: Axis<'_>, values: impl Iterator<Item = f64>) -> Self {
        let (least, most) =
            values.fold((f64::MAX, f64::MIN), |(low, high), at| (low.min(at), high.max(at)));
        match axis {
            Axis::Linear(name) => {
                let to = if most > least { most } else { least + 1.0 };
                Scale { name: escaped(name), is_logarithmic: false, from: least, to }
            }
            Axis::Logarithmic(name) => {
                let (from, to) = (least.log10().floor(), most.log10().ceil());
                let name = format!("{}, logarithmic", escaped(name));
                Scale { name, is_logarithmic: true, from, to: to.max(from + 1.0) }
            }
        }
    }

    /// How far along the axis a value is, from 0 to 1.
    fn at(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic { value.log10() } else { value };
        (value - self.from) / (self.to - self.from)
    }

    /// Values to name, and their names.
    fn ticks(&self) -> Vec<(f64, String)> {
        if self.is_logarithmic {
            let powers = self.from as i32..=self.to as i32;
            return powers.map(|power| (10f64.powi(power), tick(power))).collect();
        }
        let rough = (self.to - self.from) / 6.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * unit).into_iter();
        let step = step.clone().find(|step| *step >= rough).unwrap_or(rough);
        let (first, last) = ((self.from / step).ceil() as i64, (self.to / step).floor() as i64);
        (first..=last).map(|n| (n as f64 * step, digits(n as f64 * step))).collect()
    }
}

struct Axes {
    x: Scale,
    y: Scale,
}

impl Axes {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let (across, up) = (self.x.at(x), self.y.at(y));
        (LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM))
    }

    fn has(&self, (x, y): (f64, f64)) -> bool {
        (!self.x.is_logarithmic || x > 0.0) && (!self.y.is_logarithmic || y > 0.0)
    }

    fn draw(&self, svg: &mut String) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for (value, name) in self.x.ticks() {
            let at = LEFT + self.x.at(value) * (right - LEFT);
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{name}</text>",
                bottom + 16.0,
            );
        }
        for (value, name) in self.y.ticks() {
            let at = bottom - self.y.at(value) * (bottom - TOP);
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                LEFT - 6.0,
                at + 4.0,
            );
        }
        let (middle, down) = ((LEFT + right) / 2.0, HEIGHT - 12.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{down}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            self.x.name,
            (TOP + bottom) / 2.0,
            self.y.name
        );
    }

    fn line(&self, svg: &mut String, number: usize, line: &Line<'_>, labels: &mut Vec<Label>) {
        let points = line.points.iter().filter(|point| self.has(**point));
        let places: Vec<_> = points.map(|point| self.at(*point)).collect();
        let Some(last) = places.last() else { return };
        let (colour, dash) = (COLOURS[number % 8], DASHES[number / 3 % 3]);
        let path: Vec<_> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dash}\"/>",
            path.join("L")
        );
        if places.len() <= 12 {
            for (x, y) in &places {
                let _ = writeln!(
                    svg,
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>"
                );
            }
        }
        labels.push(Label { at: *last, colour, name: line.name.to_owned() });
    }
}

struct Label {
    at: (f64, f64),
    colour: &'static str,
    name: String,
}

/// Writes names beside the plot, each near its line's end and none over another.
fn label(svg: &mut String, mut labels: Vec<Label>) {
    labels.sort_by(|one, two| one.at.1.total_cmp(&two.at.1));
    let room = 15.0;
    let mut free = TOP;
    let lowest = HEIGHT - BOTTOM + 4.0 - room * labels.len().saturating_sub(1) as f64;
    for (number, label) in labels.iter().enumerate() {
        let y = label.at.1.max(free).min(lowest + room * number as f64);
        free = y + room;
        let x = WIDTH - RIGHT + 14.0;
        let _ = writeln!(
            svg,
            "<path d=\"M{:.1} {:.1}L{x} {y:.1}\" stroke=\"{}\" stroke-width=\"0.7\"/>\
             <text x=\"{}\" y=\"{:.1}\" fill=\"{}\">{}</text>",
            label.at.0,
            label.at.1,
            label.colour,
            x + 3.0,
            y + 4.0,
            label.colour,
            escaped(&label.name)
        );
    }
}

fn tick(power: i32) -> String {
    match power {
        0..=2 => format!("{}", 10u32.pow(power as u32)),
        3..=5 => format!("{}K", 10u32.pow(power as u32 - 3)),
        6..=8 => format!("{}M", 10u32.pow(power as u32 - 6)),
        9..=11 => format!("{}G", 10u32.pow(power as u32 - 9)),
        -2..=-1 => format!("{}", 10f64.powi(power)),
        _ => format!("1e{power}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_named_and_labels_do_not_meet() {
        let points = vec![(100.0, 1.0), (1000.0, 0.01)];
        let names: Vec<String> = (0..9).map(|number| format!("engine-{number}")).collect();
        let lines: Vec<_> =
            names.iter().map(|name| Line { name, points: points.clone() }).collect();
        let svg = logarithmic("latency", ["ns", "share"], &lines);
        let at = |name: &str| {
            let text = svg.lines().find(|line| line.contains(&format!(">{name}<"))).unwrap();
            text.split("<text x=")
                .nth(1)
                .unwrap()
                .split('"')
                .nth(3)
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        let mut places: Vec<_> = names.iter().map(|name| at(name)).collect();
        places.sort_by(f64::total_cmp);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > 12.0), "{places:?}");
        assert!(svg.contains("ns, logarithmic") && svg.contains("share, logarithmic"));
        assert_eq!(logarithmic("nothing", ["x", "y"], &[]), "");
    }

    #[test]
    fn linear_axes_begin_at_zero_and_have_round_ticks() {
        let line = |points: &[(f64, f64)]| [Line { name: "held", points: points.into() }];
        let axes = [Axis::Linear("time, s"), Axis::Linear("memory, MiB")];
        let svg = lines("held", axes, &line(&[(10.0, 3.0), (40.0, 9.0)]));
        for text in [">0<", ">2.00<", ">8.00<", ">10.0<", ">40.0<", ">time, s<", ">memory, MiB<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        // One point has axes too, and none has nothing to show.
        assert!(lines("held", axes, &line(&[(5.0, 0.0)])).contains("<circle"));
        assert_eq!(lines("held", axes, &line(&[])), "");
        assert!(standalone(&svg).starts_with("<svg xmlns="));
    }

    #[test]
    fn bars_have_names_values_and_their_unit() {
        let bar = |name, value| Bar { name, value, spread: (value * 0.9, value * 1.1) };
        let svg = bars("rates <q4>", "K events/s", &[bar("heap", 1500.0), bar("log", 0.0)]);
        for text in ["rates &lt;q4&gt;", ">heap<", ">1,500<", ">0<", "K events/s"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(bars("nothing", "", &[]), "");
    }
}
