use super::*;

const TINY: &str = r#"
title = "tiny"

[[configuration]]
name = "a"
nodes = 3
replicas = "2/3"
serve = { durability = "os", threads = 1 }

[[configuration]]
name = "b"

[[load]]
name = "PUT"
bench = "put -R100 -c4"
"#;

fn read(text: &str) -> Result<LabFile, String> {
    LabFile::read("lab.toml", text).map_err(|error| error.to_string())
}

/// Goal: a file is read correctly, and missing settings get their defaults. Method: a small one.
#[test]
fn a_file_is_read() {
    let file = read(TINY).unwrap();
    assert_eq!(file.repeats, 3);
    assert_eq!(file.window, Duration::from_secs(10));
    assert_eq!(file.profile.len(), 3);
    assert_eq!(file.maximum, None);
    assert_eq!(file.pairs(), [("a".to_owned(), "b".to_owned())]);
    let [a, b, control] = &file.configurations[..] else { panic!("two configurations and the control") };
    assert_eq!((control.name.as_str(), control.control_of.as_deref()), ("a (control)", Some("a")));
    assert_eq!(control.flags(), a.flags());
    assert_eq!(a.flags().unwrap(), ["--durability", "os", "--threads", "1"]);
    assert_eq!((a.size(), b.size()), (3, 1));
    let args = |one| file.loads[0].args(one, &["127.0.0.1:1".into()]).unwrap();
    assert_eq!(args(a).replicas.unwrap().to_string(), "2/3");
    assert_eq!(args(b).replicas, None);
}

/// Goal: there is a control where something is compared, and only one. Method: without it, with equals in the file, with
/// nothing to compare.
#[test]
fn equals_are_measured() {
    let count = |text: &str| read(text).unwrap().configurations.len();
    assert_eq!(count(TINY), 3);
    assert_eq!(count(&TINY.replace("title = \"tiny\"", "title = \"tiny\"\ncontrol = false")), 2);
    let equal = TINY.replace("name = \"b\"", "name = \"b\"\n[[configuration]]\nname = \"c\"");
    assert_eq!(count(&equal), 3, "b and c are the same");
    assert_eq!(read(&equal).unwrap().equals[0].configurations, ["b".to_owned(), "c".to_owned()]);
    let foreign = |path: &str| {
        let command = "command = [\"java\", \"{port}\"]";
        let target = |path: &str| format!("target = {{ put = \"PUT /{path}?id={{key}}\" }}");
        let (one, two) = (target("a"), target(path));
        let two =
            format!("name = \"b\"\n{command}\n{one}\n[[configuration]]\nname = \"c\"\n{command}\n{two}");
        read(&TINY.replace("name = \"b\"", &two)).unwrap().equals.len()
    };
    assert_eq!((foreign("a"), foreign("b")), (1, 0), "other requests are no control");
    assert_eq!(count(&TINY.replace("[[configuration]]\nname = \"b\"\n", "")), 1);
    let declared = "title = \"tiny\"\nequals = [{ configurations = [\"a\", \"b\"], load = \"PUT\" }]";
    assert_eq!(count(&TINY.replace("title = \"tiny\"", declared)), 2);
}

/// Goal: mistakes are reported with their place. Method: a table of small mistakes.
#[test]
fn mistakes_are_named() {
    let check = |from: &str, to: &str, expect: &str| {
        assert!(TINY.contains(from), "{from}");
        let error = read(&TINY.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(expect) && error.contains("lab.toml"), "{to}: {error}");
    };
    check("title", "titel", "unknown field `titel`");
    check("nodes = 3", "noes = 3", "unknown field `noes`");
    check("nodes = 3", "nodes = 300", "nodes: 1 to 16");
    check("bench = ", "bensh = ", "unknown field `bensh`");
    check("\"2/3\"", "\"3/2\"", "replicas: \"3/2\" is not ACK/FROM");
    check("threads = 1", "threads = 1.5", "serve.threads: a text or a number");
    check("threads = 1", "listen = \"x\"", "serve.listen: the lab decides this");
    check("name = \"b\"", "name = \"a\"", "configuration \"a\": a name of its own");
    check("name = \"b\"", "name = \"-A-\"", "in letters and digits");
    check("name = \"b\"", "name = \"b\"\nurls = [\"127.0.0.1:1\"]\nnodes = 1", "a cluster that runs already");
    check("title = \"tiny\"", "title = \"\"\ncompare = [[\"a\", \"c\"]]", "no configuration \"c\"");
    check(
        "title = \"tiny\"",
        "title = \"\"\nequals = [{ configurations = [\"a\", \"c\"] }]",
        "equals: there is no configuration \"c\"",
    );
    check("title = \"tiny\"", "title = \"\"\nwindow = \"soon\"", "window");
    check("title = \"tiny\"", "title = \"\"\nprofile = [\"disk\"]", "unknown variant `disk`");
    check("-R100", "", "a rate is needed");
    check("-R100", "-R100 --josn x", "--josn");
    check("-R100", "-R100 --json x", "not for loads of a lab");
    check("-R100", "-R100 http://127.0.0.1:1", "no URL");
    check("put -R100 -c4", "mixed -R100 --read-fraction 2", "--read-fraction");
    assert!(read("title = \"none\"\n").unwrap_err().contains("at least one [[configuration]]"));
}

/// Goal: the built-in ladder is a file like any other, five stages that change one thing each. Method: read it.
#[test]
fn the_ladder_is_read() {
    let mut file = read(LADDER).unwrap();
    assert_eq!(file.configurations.len(), 6, "five stages and the control");
    assert_eq!(file.configurations.pop().unwrap().control_of, Some(file.configurations[0].name.clone()));
    assert_eq!(file.loads.len(), 2);
    for pair in file.configurations.windows(2) {
        let changed = usize::from(pair[0].nodes != pair[1].nodes)
            + usize::from(pair[0].replicas != pair[1].replicas)
            + pair[1].serve.iter().filter(|(name, value)| pair[0].serve.get(*name) != Some(value)).count();
        assert_eq!(changed, if pair[1].name.ends_with("sequential") { 2 } else { 1 }, "{}", pair[1].name);
    }
    file.make_quick();
    assert!(file.window <= Duration::from_secs(2));
}

/// Goal: the built-in stages are five of the Java reference, each with another first argument, and kvorum in the last
/// column, all under the same loads. Method: read the file.
#[test]
fn the_stages_are_read() {
    let file = read(STAGES).unwrap();
    let names: Vec<&str> = file.configurations.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names[5..], ["kvorum", "Java, sync (control)"]);
    let stages: Vec<&str> = file.configurations[..5]
        .iter()
        .map(|one| {
            assert!(one.has_gc_log() && one.profiler() == Profiler::Known(Known::AsyncProfiler), "{one:?}");
            let words = one.command.as_ref().unwrap();
            assert_eq!(words[words.len() - 4], "{java-reference}");
            words[words.len() - 3].as_str()
        })
        .collect();
    assert_eq!(stages, ["sync", "async", "sharded", "replicated", "async-client"]);
    assert_eq!(file.configurations[5].command, None);
    assert_eq!(file.pairs().len(), 5);
}

/// Goal: settings of a command are refused where there is none. Method: each of them for a node of kvorum.
#[test]
fn settings_of_a_command_need_one() {
    for setting in ["processes = 1", "stop = \"SIGTERM\"", "ready = \"tcp\"", "env = { A = \"b\" }"] {
        let error = read(&TINY.replace("name = \"b\"", &format!("name = \"b\"\n{setting}"))).unwrap_err();
        assert!(error.contains("are for a command of one's own"), "{setting}: {error}");
    }
}
