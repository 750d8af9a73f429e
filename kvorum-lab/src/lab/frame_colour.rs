//! The colour of a frame of a flame graph: one for each package, so that what belongs together looks alike, in the report's
//! page, in every single file, and in every run.

/// A colour's red, green and blue parts.
pub(super) type Rgb = (u8, u8, u8);

/// From orange to blue: red and violet are left to differences and to marks.
const HUE_FIRST: u32 = 20;
const HUES: u32 = 200;

/// Saturation of a colour, and lightness of the darkest of the ten shades, both in percent.
const SATURATION: u32 = 62;
const LIGHTNESS: u32 = 68;

/// The colour of the frame `name`.
pub(super) fn frame_colour(name: &str) -> Rgb {
    let hash = package(name).bytes().fold(0_u32, |hash, byte| (hash * 31 + u32::from(byte)) % 997);
    from_hsl(HUE_FIRST + hash * 47 % HUES, SATURATION, LIGHTNESS + hash % 10)
}

/// `frame_colour` as a page writes it.
pub(super) fn frame_hex(name: &str) -> String {
    let (red, green, blue) = frame_colour(name);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// The crate of a Rust function, the first two parts of a package of Java or Go, the library of a C++ function, and the kernel
/// for all of its functions; otherwise the name.
fn package(name: &str) -> &str {
    if name.ends_with("_[k]") {
        return "kernel";
    }
    let name = name.trim_start_matches(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let end = name.find(|letter: char| " <(".contains(letter)).unwrap_or(name.len());
    let name = name.get(..end).unwrap_or(name);
    if let Some((package, _)) = name.split_once("::") {
        return package;
    }
    let Some((package, _)) = name.rsplit_once('/') else {
        // Go writes `runtime.main` for a function of a package without a path.
        return name.split_once('.').map_or(name, |(package, _)| package);
    };
    package.match_indices('/').nth(1).and_then(|(at, _)| package.get(..at)).unwrap_or(package)
}

/// The colour of a hue in degrees, a saturation and a lightness in percent.
///
/// As in CSS Color Module Level 4, section 7.1.
fn from_hsl(hue: u32, saturation: u32, lightness: u32) -> Rgb {
    let [hue, saturation, lightness] = [hue, saturation, lightness].map(f64::from);
    let (saturation, lightness) = (saturation / 100.0, lightness / 100.0);
    let spread = saturation * lightness.min(1.0 - lightness);
    let part = |offset: f64| {
        let place = (offset + hue / 30.0) % 12.0;
        let value = lightness - spread * (place - 3.0).min(9.0 - place).clamp(-1.0, 1.0);
        // A value from 0 to 1 by construction.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is from 0 to 255")]
        let byte = (value * 255.0).round() as u8;
        byte
    };
    (part(0.0), part(8.0), part(4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what belongs together has one colour in every language. Method: names of each.
    #[test]
    fn packages_are_told() {
        let expect = [
            ("tokio::runtime::task::poll", "tokio"),
            ("<hyper::proto::Conn as core::future::Future>::poll", "hyper"),
            ("java/util/concurrent/ThreadPoolExecutor.runWorker", "java/util"),
            ("reference/Node.handle", "reference"),
            ("net/http.(*conn).serve", "net"),
            ("github.com/a/b/c.Work", "github.com/a"),
            ("runtime.main", "runtime"),
            ("__x64_sys_futex_[k]", "kernel"),
            ("epoll_wait", "epoll_wait"),
            ("<", ""),
            ("", ""),
        ];
        for (name, package_of_it) in expect {
            assert_eq!(package(name), package_of_it, "{name}");
        }
        assert_eq!(frame_colour("tokio::a"), frame_colour("tokio::b::c"));
        assert_ne!(frame_colour("tokio::a"), frame_colour("hyper::a"));
    }

    /// Goal: colours are those of CSS. Method: known ones.
    #[test]
    fn hsl_is_that_of_css() {
        assert_eq!(from_hsl(0, 100, 50), (255, 0, 0));
        assert_eq!(from_hsl(120, 100, 25), (0, 128, 0));
        assert_eq!(from_hsl(210, 50, 60), (102, 153, 204));
        assert_eq!(from_hsl(20, 62, 68), (224, 157, 123));
    }
}
