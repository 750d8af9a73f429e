use super::*;

fn file() -> LabFile {
    let text = r#"
        title = "tiny"
        repeats = 2
        maximum = "5ms"
        configuration = [{ name = "a" }, { name = "b", nodes = 2 }]
        load = [{ name = "PUT", bench = "put -R100" }]
    "#;
    LabFile::read("tiny", text).unwrap()
}

/// Goal: repeats go round all configurations, everything is done once. Method: the whole list.
#[test]
fn steps_go_round() {
    let file = file();
    let steps: Vec<String> = tasks(&file).iter().map(|(one, task)| format!("{} {task}", one.name)).collect();
    let expect = [
        "a repeat 1",
        "b repeat 1",
        "a (control) repeat 1",
        "a profiles",
        "b profiles",
        "a repeat 2",
        "b repeat 2",
        "a (control) repeat 2",
        "a highest rate",
        "b highest rate",
    ];
    assert_eq!(steps, expect);
}

/// Goal: names are safe in paths. Method: hostile ones.
#[test]
fn names_become_files() {
    assert_eq!(slug("3 nodes, 2/3 (sequential)"), "3-nodes-2-3-sequential");
    assert_eq!(slug("../../etc"), "etc");
    assert_eq!(slug("ÄÖ"), "");
}

/// Goal: the command of a run is the one that would make it. Method: a load, with the configuration's quorum.
#[test]
fn commands_are_whole() {
    let mut file = file();
    file.configurations[0].replicas = Some("1/1".into());
    let load = &file.loads[0];
    let args = load.args(&file.configurations[0], &["http://127.0.0.1:9".into()]).unwrap();
    let plan = cli::plan(&args).unwrap();
    let expect = "kvorum bench -d30s put -R100 --replicas 1/1 --latency http://127.0.0.1:9";
    assert_eq!(command(load, &plan), expect);
}

/// Goal: a profiled load has the phase of no tick, and is still the same load. Method: multiples of 100, 250
/// and 1,000.
#[test]
fn profiles_are_out_of_step() {
    for rate in [1_000, 2_000, 5_000] {
        let beaten = out_of_step(rate);
        assert!(
            [100, 250, 1_000].iter().all(|tick| !beaten.is_multiple_of(*tick)) && beaten - rate <= rate / 50,
            "{beaten}"
        );
    }
    assert_eq!(out_of_step(100), 100);
}

/// Goal: a light load is sampled for longer, within bounds. Method: by hand, at 60 samples a second of CPU time.
#[test]
fn light_loads_are_sampled_for_longer() {
    let seconds = |cores, windows_max| cpu_window(Duration::from_secs(5), windows_max, cores).as_secs();
    assert_eq!(seconds(1.5, 6), 5, "450 samples");
    assert_eq!(seconds(0.25, 6), 17);
    assert_eq!(seconds(0.05, 6), 30, "90 samples");
    assert_eq!(seconds(0.0, 6), 30, "an idle cluster");
    assert_eq!(seconds(0.05, 1), 5, "quick");
}
