//! Lines over time, such as memory as windows pass.

use std::path::Path;

use plotters::prelude::*;

use crate::{Error, Result};

/// A named line.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// What it shows.
    pub name: &'a str,
    /// Its points, from left to right.
    pub points: &'a [(f64, f64)],
}

/// Draws `lines` into an SVG file, on axes from zero.
pub fn write_lines_svg(
    path: &Path,
    title: &str,
    [x, y]: [&str; 2],
    lines: &[Line<'_>],
) -> Result<()> {
    let mut image = String::new();
    draw(&mut image, title, [x, y], lines)
        .map_err(|error| Error::io(path, "draw", std::io::Error::other(error.to_string())))?;
    std::fs::write(path, image).map_err(|source| Error::io(path, "write", source))
}

fn draw(
    image: &mut String,
    title: &str,
    [x, y]: [&str; 2],
    lines: &[Line<'_>],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let all = || lines.iter().flat_map(|line| line.points);
    let right = all().map(|point| point.0).fold(1.0, f64::max);
    let left = all().map(|point| point.0).fold(right, f64::min);
    let top = all().map(|point| point.1).fold(1.0, f64::max);
    let area = SVGBackend::with_string(image, (960, 600)).into_drawing_area();
    area.fill(&WHITE)?;
    // A single point has an axis too.
    let right = if left < right { right } else { left + 1.0 };
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(left..right, 0.0..top * 1.1)?;
    chart.configure_mesh().x_desc(x).y_desc(y).draw()?;
    for (index, line) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?
            .label(line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK).draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_also_if_they_have_one_point_or_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.svg");
        for points in [&[(1.0, 2.0), (2.0, 0.5), (3.0, 7.0)][..], &[(5.0, 0.0)], &[]] {
            let lines = [Line { name: "tracked", points }, Line { name: "disk", points: &[] }];
            write_lines_svg(&path, "held", ["seconds", "MiB"], &lines).unwrap();
            let image = std::fs::read_to_string(&path).unwrap();
            assert!(image.contains("<svg") && image.contains("tracked"), "{image}");
            assert_eq!(image.matches("seconds").count(), 1);
        }
    }
}
