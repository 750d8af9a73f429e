use super::*;
use crate::lab::fixture::{results, run};
use crate::lab::profile::Stacks;
use crate::lab::results::ProfileRecord;

fn made() -> (Results, Profiles) {
    let of = |millis: &[f64]| millis.iter().map(|&one| run("PUT", one)).collect::<Vec<_>>();
    let (one, two) = (of(&[1.0, 1.01, 0.99]), of(&[2.0, 2.01, 1.99]));
    let results = results(&[("one <b>", &one), ("two", &two)]);
    let key = |name: &str| (name.to_owned(), "PUT".to_owned(), Event::Cpu);
    let stacks = |text: &str| Stacks::read(text).unwrap();
    let profiles = [
        (key("one <b>"), stacks("net;node::http 900\n")),
        (key("two"), stacks("net;node::http</script> 900\nnet;node::peer 300\n")),
    ];
    (results, profiles.into())
}

/// Goal: tables of figures and changes hold the measurements, with marks. Method: the whole Markdown of both.
#[test]
fn tables_are_as_expected() {
    let (results, _) = made();
    let expect = "### PUT: figures

|  | one <b> | two |
| --- | ---: | ---: |
| operations/s | 1,000 ± 0 | 1,000 ± 0 |
| latency, mean | 1.00ms ± 24.85us | 2.00ms ± 24.84us |
| latency, p50 | 1.00ms ± 24.84us | 2.00ms ± 24.84us |
| latency, p90 | 1.00ms ± 24.84us | 2.00ms ± 24.84us |
| latency, p99 | 1.00ms ± 24.84us | 2.00ms ± 24.84us |
| latency, p99.9 | 1.00ms ± 24.84us | 2.00ms ± 24.84us |
| latency, max | 1.00ms ± 24.85us | 2.00ms ± 24.84us |
| CPU of the cluster, µs/operation | 20.0 ± 0.0 | 20.0 ± 0.0 |
| memory of the cluster, resident | 10.0 MiB ± 0.0 MiB | 10.0 MiB ± 0.0 MiB |
| failed operations | 0 | 0 |

";
    let is_like = |line: &str| !line.contains("mean") && !line.contains("max");
    let kept = |text: &str| text.lines().filter(|line| is_like(line)).map(String::from).collect::<Vec<_>>();
    assert_eq!(kept(&values(&results, "PUT").markdown()), kept(expect));
    let changes = changes(&results, "PUT").markdown();
    assert!(changes.contains("| | one <b> → two |") || changes.contains("|  | one <b> → two |"), "{changes}");
    assert!(changes.contains("| latency, p99 | x2.00* |"), "{changes}");
    assert!(changes.contains("| operations/s | x1.00 |"), "{changes}");
}

/// Goal: the folder holds a page that needs no other file, a text, and a file for each flame graph. Method:
/// write it. Then look for references that would load something, for names that were not escaped, and for
/// each file that is linked.
#[test]
fn the_page_stands_alone() {
    let (results, profiles) = made();
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &results, &profiles).unwrap();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let page = read("report.html");
    for word in ["<script src", "<link rel=\"stylesheet", "<img", "@import", "url(", "fetch(", "https://"] {
        assert!(!page.contains(word), "the page has {word}");
    }
    assert!(page.contains("one &lt;b&gt;") && !page.contains("one <b></th>"), "a name is not escaped");
    assert!(page.contains("node::http<\\/script>"), "a frame could end the script");
    assert!(page.contains("class=\"line c1\""), "the second configuration has no line");
    let text = read("report.md");
    let links: Vec<&str> = text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect();
    assert_eq!(links.len(), 3, "two configurations, one difference: {links:?}");
    for link in links {
        assert!(read(link).contains("</svg>"), "{link}");
    }
    assert!(text.contains("kvorum bench put -R1000") && !text.contains("Detailed Percentile"), "{text}");
}

/// Goal: both reports of a quick run say that its figures are no results. Method: look for the text.
#[test]
fn a_quick_report_says_so() {
    let (mut results, profiles) = made();
    results.is_quick = true;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &results, &profiles).unwrap();
    for name in ["report.md", "report.html"] {
        let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.contains("Its figures are not results."), "{name}");
    }
}

/// Goal: the report shows the cost of each profile, and no row for a load without one. Method: the whole
/// table.
#[test]
fn the_cost_of_profiles_is_told() {
    let (mut results, _) = made();
    assert!(cost_of_profiles(&results).is_none());
    let record = |event, cpu| ProfileRecord {
        load: "PUT".into(),
        event,
        seconds: 5,
        operations: 5000.0,
        total: 1,
        cpu_micros_per_operation: cpu,
        unprofiled_cpu_micros_per_operation: Some(20.0),
        file: String::new(),
    };
    results.steps[0].profiles = vec![record(Event::Cpu, Some(20.5)), record(Event::Lock, None)];
    let table = cost_of_profiles(&results).unwrap().markdown();
    assert!(table.contains("| one <b> | PUT | 20.0 | 20.5 | – | – |"), "{table}");
    assert!(!table.contains("| two |"), "{table}");
}
