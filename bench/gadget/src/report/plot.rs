//! Plots as SVG: logarithmic axes with their names and units, lines labelled where they end.

use std::fmt::Write;

/// Colours that colour-blind readers tell apart (Okabe and Ito), dark enough for lines on white.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#8c6d1f"];
/// Line patterns, so that colour is not needed.
const DASHES: [&str; 3] = ["", "7 3", "2 3"];

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 52.0;

/// A named line.
pub(crate) struct Line<'a> {
    pub(crate) name: &'a str,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws lines on two logarithmic axes; nothing if there are no points.
pub(crate) fn logarithmic(title: &str, [x, y]: [&str; 2], lines: &[Line<'_>]) -> String {
    let all = || lines.iter().flat_map(|line| &line.points).filter(|(x, y)| *x > 0.0 && *y > 0.0);
    if all().next().is_none() {
        return String::new();
    }
    let bounds = |of: fn(&(f64, f64)) -> f64| {
        let least = all().map(of).fold(f64::MAX, f64::min);
        let most = all().map(of).fold(0.0, f64::max);
        let (least, most) = (least.log10().floor(), most.log10().ceil());
        (least, most.max(least + 1.0))
    };
    let axes = Axes { x: bounds(|point| point.0), y: bounds(|point| point.1) };
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{title}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    );
    axes.draw(&mut svg, x, y);
    let mut labels = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        axes.line(&mut svg, number, line, &mut labels);
    }
    label(&mut svg, labels);
    svg + "</svg>\n"
}

struct Axes {
    x: (f64, f64),
    y: (f64, f64),
}

impl Axes {
    fn at(&self, (x, y): (f64, f64)) -> (f64, f64) {
        let across = (x.log10() - self.x.0) / (self.x.1 - self.x.0);
        let up = (y.log10() - self.y.0) / (self.y.1 - self.y.0);
        (LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM))
    }

    fn draw(&self, svg: &mut String, x: &str, y: &str) {
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        for power in self.x.0 as i32..=self.x.1 as i32 {
            let (at, _) = self.at((10f64.powi(power), 10f64.powf(self.y.0)));
            let _ = writeln!(
                svg,
                "<path d=\"M{at:.1} {TOP}V{bottom}\" stroke=\"#ddd\"/>\
                 <text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                tick(power)
            );
        }
        for power in self.y.0 as i32..=self.y.1 as i32 {
            let (_, at) = self.at((10f64.powf(self.x.0), 10f64.powi(power)));
            let _ = writeln!(
                svg,
                "<path d=\"M{LEFT} {at:.1}H{right}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                at + 4.0,
                tick(power)
            );
        }
        let (middle, down) = ((LEFT + right) / 2.0, HEIGHT - 12.0);
        let _ = writeln!(
            svg,
            "<text x=\"{middle}\" y=\"{down}\" text-anchor=\"middle\">{x}, logarithmic</text>\
             <text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{y}, logarithmic</text>",
            (TOP + bottom) / 2.0
        );
    }

    fn line(&self, svg: &mut String, number: usize, line: &Line<'_>, labels: &mut Vec<Label>) {
        let points = line.points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0);
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
            label.name
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
}
