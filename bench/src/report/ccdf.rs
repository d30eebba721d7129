//! Latency curves: for each latency, the share of operations that took at least as long.
//!
//! Both axes are logarithmic, so that the tail is as wide as the rest. The CSV has the same
//! points for whoever wants to draw them otherwise.

use std::fs::File;
use std::path::Path;

use plotters::prelude::*;

use super::latency::Latencies;
use crate::{Error, Result};

/// A named set of latencies.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// What took so long.
    pub name: &'a str,
    /// How long.
    pub latencies: &'a Latencies,
}

/// Writes the points of `curves` as `name,latency_ns,share_at_least`.
pub fn write_ccdf_csv(path: &Path, curves: &[Curve<'_>]) -> Result<()> {
    let failed = |error: csv::Error| Error::io(path, "write", error.into());
    let file = File::create(path).map_err(|source| Error::io(path, "create", source))?;
    let mut writer = csv::Writer::from_writer(file);
    writer.write_record(["name", "latency_ns", "share_at_least"]).map_err(failed)?;
    for curve in curves {
        for (ns, share) in curve.latencies.ccdf() {
            let row = [curve.name.to_owned(), ns.to_string(), share.to_string()];
            writer.write_record(row).map_err(failed)?;
        }
    }
    writer.flush().map_err(|source| Error::io(path, "write", source))
}

/// Draws `curves` into an SVG file.
pub fn write_ccdf_svg(path: &Path, title: &str, curves: &[Curve<'_>]) -> Result<()> {
    // The drawing goes to memory, so that what fails is the file and is reported as such.
    let mut image = String::new();
    draw(&mut image, title, curves)
        .map_err(|error| Error::io(path, "draw", std::io::Error::other(error.to_string())))?;
    std::fs::write(path, image).map_err(|source| Error::io(path, "write", source))
}

fn draw(
    image: &mut String,
    title: &str,
    curves: &[Curve<'_>],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let points: Vec<_> = curves.iter().map(|curve| microseconds(curve.latencies)).collect();
    let all = || points.iter().flatten();
    let longest = all().map(|point| point.0).fold(1.0, f64::max);
    let shortest = all().map(|point| point.0).fold(longest, f64::min);
    let rarest = all().map(|point| point.1).fold(0.1, f64::min);
    let area = SVGBackend::with_string(image, (960, 600)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((shortest..longest * 1.2).log_scale(), (rarest..1.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("latency, us")
        .y_desc("share at least as long")
        .x_label_formatter(&tick)
        .y_label_formatter(&tick)
        .draw()?;
    for (index, (curve, points)) in curves.iter().zip(points).enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

/// Nine places, without the digits that a double has beyond what was meant.
fn tick(value: &f64) -> String {
    ((value * 1e9).round() / 1e9).to_string()
}

fn microseconds(latencies: &Latencies) -> Vec<(f64, f64)> {
    latencies.ccdf().into_iter().map(|(ns, share)| (ns.max(1) as f64 / 1e3, share)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_written_as_svg_and_csv() {
        let dir = tempfile::tempdir().unwrap();
        let mut latencies = Latencies::new();
        (1..10_000u64).for_each(|ns| latencies.record(ns * ns));
        let empty = Latencies::new();
        let curves = [
            Curve { name: "heap", latencies: &latencies },
            Curve { name: "nothing", latencies: &empty },
        ];
        let (svg, csv) = (dir.path().join("c.svg"), dir.path().join("c.csv"));
        write_ccdf_svg(&svg, "q4", &curves).unwrap();
        write_ccdf_csv(&csv, &curves).unwrap();
        let image = std::fs::read_to_string(svg).unwrap();
        assert!(image.contains("<svg") && image.contains("polyline") && image.contains("heap"));
        let text = std::fs::read_to_string(csv).unwrap();
        assert!(text.starts_with("name,latency_ns,share_at_least\nheap,1,1\n"), "{}", &text[..60]);
    }

    #[test]
    fn no_latencies_at_all_can_be_drawn() {
        let dir = tempfile::tempdir().unwrap();
        write_ccdf_svg(&dir.path().join("c.svg"), "none", &[]).unwrap();
    }
}
