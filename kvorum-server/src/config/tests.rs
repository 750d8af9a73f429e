use super::*;

fn with(
    flags: &[(&'static str, &str)],
    environment: &[(&str, &str)],
    file: Option<&str>,
) -> Result<(Config, Vec<Resolved>), ConfigError> {
    let flags = flags.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let environment =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    resolve(&flags, &environment, file.map(|text| (Path::new("k.toml"), text)))
}

/// Each source overrides those after it, and the origin names the one that was used.
#[test]
fn flags_win_over_environment_over_file() {
    let file = "request_timeout = \"7s\"\nmax-value-size = \"2MiB\"\nthreads = 3\n";
    let environment = [("KVORUM_REQUEST_TIMEOUT", "8s"), ("KVORUM_THREADS", "4")];
    let (config, resolved) = with(&[("threads", "5")], &environment, Some(file)).unwrap();
    assert_eq!(config.threads, 5);
    assert_eq!(config.request_timeout, Duration::from_secs(8));
    assert_eq!(config.limits.value_bytes_max, 2 << 20);
    let origin = |name| resolved.iter().find(|row| row.name == name).unwrap().origin.to_string();
    assert_eq!(origin("threads"), "flag --threads");
    assert_eq!(origin("request-timeout"), "environment KVORUM_REQUEST_TIMEOUT");
    assert_eq!(origin("max-value-size"), "file k.toml");
    assert_eq!(origin("pool-threads"), "default");
}

/// The printed configuration is a file that resolves to the same values.
#[test]
fn printed_configuration_is_a_configuration() {
    let (_, resolved) = with(&[("durability", "interval:50")], &[], None).unwrap();
    let page = print(&resolved);
    let (_, again) = with(&[], &[], Some(&page)).unwrap();
    assert!(resolved.iter().zip(&again).all(|(a, b)| a.value == b.value), "{page}");
}

/// Every default is valid, and every setting refuses an invalid value with an error that names it.
#[test]
fn nonsense_is_refused_by_name() {
    with(&[], &[], None).unwrap();
    let files = ["data-dir", "token-file", "peer-secret-file", "audit-log", "admin-socket"];
    for setting in SETTINGS.iter().filter(|setting| !files.contains(&setting.name)) {
        let error = with(&[(setting.name, "no such thing")], &[], None).unwrap_err().to_string();
        assert!(error.contains(setting.name) && error.contains("flag"), "{error}");
    }
    for (name, value) in [
        // Without a file of tokens, nobody could have one.
        ("auth", "on"),
        ("auth", "warn"),
        // Without a file of secrets, no peer could prove one.
        ("peer-auth", "require"),
        ("insecure", "true"),
        ("durability", "interval:0"),
        ("durability", "interval:"),
        ("request-timeout", "0s"),
        ("request-timeout", "5 seconds"),
        ("request-timeout", "0.0001ms"),
        ("max-value-size", "257MiB"),
        ("memory-budget", "15MiB"),
        ("max-body-memory", "1MiB"),
        ("clock-offset-limit", "499ms"),
        ("replication-factor", "0"),
        ("cluster", "http://a:1,http://b:2"),
        ("cluster-name", "a b"),
        ("fanout", "both"),
        ("hint-max-age", "0s"),
        ("cluster", "http://a:1,http://a:1"),
        ("cluster", "http://127.0.0.1:8080,http://127.0.0.1:08080/"),
        ("cluster", "http://127.0.0.1:8080,http://a:80,http://A."),
        ("cluster", "ftp://a:1"),
        ("cluster", "http://a"),
        ("cluster", "http://a:1/x"),
        ("cluster", "http://a:1"),
    ] {
        assert!(with(&[(name, value)], &[], None).is_err(), "{name}={value}");
    }
}

/// A former setting that is now a command is refused from every source, whatever its value; the error names the
/// command.
#[test]
fn retired_settings_name_the_command() {
    for (name, command) in
        [("new-cluster", "kvorum bootstrap DIR"), ("trust-store", "kvorum trust-store DIR")]
    {
        let spelled = name.replace('-', "_");
        let variable = variable_of(name);
        for value in ["yes", "no", ""] {
            let file = format!("{spelled} = {value:?}\n");
            for outcome in [
                with(&[(name, value)], &[], None),
                with(&[], &[(&variable, value)], None),
                with(&[], &[], Some(&file)),
            ] {
                let error = outcome.unwrap_err().to_string();
                assert!(error.starts_with(name) && error.contains(command), "{error}");
            }
        }
        assert!(SETTINGS.iter().all(|setting| setting.name != name));
    }
}

/// Goal: a renamed setting goes on working from every source. Method: each old name, from each source, gives the same
/// configuration as the new name, shows the new name, and is reported as an old name with its source.
#[test]
fn old_names_are_accepted() {
    let renamed: Vec<&Setting> = SETTINGS.iter().filter(|setting| !setting.old_names.is_empty()).collect();
    let names: Vec<(&str, &str)> =
        renamed.iter().flat_map(|setting| setting.old_names.iter().map(|old| (*old, setting.name))).collect();
    let expect = [
        ("workers", "pool-threads"),
        ("hint-wait", "hint-drain-timeout"),
        ("scrub-every", "scrub-interval"),
        ("settle-interval", "tombstone-gc-interval"),
    ];
    assert_eq!(
        names, expect,
        "a released name is never dropped from the table without a word in the changelog"
    );
    for (old, new) in names {
        assert!(SETTINGS.iter().all(|setting| setting.name != old), "{old} is a name again");
        let value = if old == "workers" { "7" } else { "7s" };
        // Where a value comes from is kept, and differs.
        let values = |mut config: Config| {
            config.settings.clear();
            format!("{config:?}")
        };
        let (expect, _) = with(&[(new, value)], &[], None).unwrap();
        let expect = values(expect);
        let (variable, spelled) = (variable_of(old), old.replace('-', "_"));
        for (source, outcome) in [
            (format!("flag --{old}"), with(&[(old, value)], &[], None)),
            (format!("environment {variable}"), with(&[], &[(&variable, value)], None)),
            ("file k.toml".to_owned(), with(&[], &[], Some(&format!("{old} = {value:?}")))),
            ("file k.toml".to_owned(), with(&[], &[], Some(&format!("{spelled} = {value:?}")))),
        ] {
            let (config, resolved) = outcome.unwrap();
            assert_eq!(values(config), expect, "{old} from {source}");
            let row = resolved.iter().find(|row| row.name == new).unwrap();
            assert_eq!((row.old_name, row.origin.to_string()), (Some(old), source));
            assert_eq!(resolved.iter().filter(|row| row.old_name.is_some()).count(), 1);
            let page = print(&resolved);
            assert!(!page.lines().any(|line| line.starts_with(old)), "{page}");
            let (again, resolved) = with(&[], &[], Some(&page)).unwrap();
            assert_eq!(values(again), expect);
            assert!(resolved.iter().all(|row| row.old_name.is_none()));
        }
        let environment = BTreeMap::from([(variable, String::new())]);
        assert_eq!(unknown_variables(&environment), [""; 0]);
        assert!(hidden_names().any(|name| name == old));
    }
}

/// A setting under its old and its new name is refused, wherever each comes from and whatever the values; the error names
/// both.
#[test]
fn two_names_of_one_setting_are_refused() {
    for setting in SETTINGS {
        for old in setting.old_names {
            let new = setting.name;
            let (old_variable, new_variable) = (variable_of(old), variable_of(new));
            let file =
                |names: &[&str]| names.iter().fold(String::new(), |page, name| page + name + " = \"7s\"\n");
            for outcome in [
                with(&[(old, "7s"), (new, "7s")], &[], None),
                with(&[], &[(&old_variable, "7s"), (&new_variable, "7s")], None),
                with(&[], &[], Some(&file(&[old, new]))),
                with(&[(new, "7s")], &[(&old_variable, "7s")], None),
                with(&[(new, "7s")], &[], Some(&file(&[old]))),
                with(&[], &[(&old_variable, "7s")], Some(&file(&[new]))),
            ] {
                let error = outcome.unwrap_err();
                assert!(matches!(error, ConfigError::TwoNames { .. }), "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("{old} (")) && text.contains(&format!("{new} (")), "{text}");
            }
        }
    }
}

/// Unknown keys, duplicate spellings and wrong types in the file are reported by name.
#[test]
fn bad_files_are_refused() {
    let error = |file| with(&[], &[], Some(file)).unwrap_err().to_string();
    assert!(error("lisen = \"x\"").contains("unknown key \"lisen\""));
    assert!(error("data-dir = \"a\"\ndata_dir = \"b\"").contains("set twice"));
    assert!(error("threads = true").contains("threads"));
    assert!(error("threads = ").contains("k.toml"));
}

/// A node finds its URL in the list, and equal lists compare as equal, whatever the spelling of the URLs.
#[test]
fn urls_are_compared_as_urls() {
    let cluster = |listen: &str, urls: &str| {
        let (config, _) = with(&[("listen", listen), ("cluster", urls)], &[], None).unwrap();
        (config.advertise, config.cluster)
    };
    let expect = ["http://[::1]:8080".to_owned(), "http://node-b:80".to_owned()];
    for urls in [
        "http://[::1]:8080,http://node-b:80",
        "HTTP://[0:0::1]:08080/,http://Node%2DB.",
        "http://[::1]:8080,http://NODE-B:/",
    ] {
        assert_eq!(cluster("[::1]:8080", urls), (expect[0].clone(), expect.to_vec()), "{urls}");
    }
    let flags = [("cluster", "http://a:1,http://b:1"), ("advertise", "http://B:1/")];
    assert_eq!(with(&flags, &[], None).unwrap().0.advertise, "http://b:1");
}

/// A cluster of one by its own URL, or by an advertised one.
#[test]
fn cluster_of_one() {
    let advertised =
        |flags: &[(&'static str, &str)]| with(flags, &[], None).map(|(config, _)| config.advertise);
    assert_eq!(advertised(&[]), Ok("http://127.0.0.1:8080".into()));
    assert_eq!(advertised(&[("cluster", "http://127.0.0.1:8080/")]), Ok("http://127.0.0.1:8080".into()));
    assert_eq!(
        advertised(&[("cluster", "http://n:1"), ("advertise", "http://n:1")]),
        Ok("http://n:1".into())
    );
    assert!(advertised(&[("cluster", "http://n:1"), ("advertise", "http://m:1")]).is_err());
}

/// Variables with our prefix that are not settings are found.
#[test]
fn unknown_variables_are_found() {
    let environment = ["KVORUM_LISTEN", "KVORUM_SERVICE_HOST", "KVORUM_CONFIG", "PATH"]
        .map(|name| (name.to_owned(), String::new()))
        .into();
    assert_eq!(unknown_variables(&environment), ["KVORUM_SERVICE_HOST"]);
}

/// Goal: a node that strangers could use does not start where they could reach it, unless the operator says so; the error
/// names what is missing. Method: addresses on this machine and beyond, alone and in a cluster, with and without each
/// protection.
#[test]
fn open_nodes_stay_on_their_machine() {
    let check = |listen: &str, flags: &[(&'static str, &str)], expect: Result<(), &[&str]>| {
        let flags = [&[("listen", listen)], flags].concat();
        match (with(&flags, &[], None), expect) {
            (Ok(_), Ok(())) => {}
            (Err(error), Err(named)) => {
                let error = error.to_string();
                assert!(error.starts_with("insecure = "), "{flags:?}: {error}");
                for name in ["--token-file", "--peer-ca or --peer-secret-file"] {
                    let named: Vec<_> =
                        named.iter().map(|name| name.replace("--peer-s", "--peer-ca or --peer-s")).collect();
                    assert_eq!(error.contains(name), named.iter().any(|it| it == name), "{flags:?}: {error}");
                }
            }
            (found, _) => panic!("{flags:?}: {found:?}"),
        }
    };
    let cluster = [("cluster", "http://10.0.0.1:80,http://10.0.0.2:80"), ("advertise", "http://10.0.0.1:80")];
    let tokens = [("auth", "on"), ("token-file", "t")];
    let secret = [("peer-secret-file", "s")];
    for own in ["127.0.0.1:80", "127.9.9.9:80", "[::1]:80", "[::ffff:127.0.0.1]:80"] {
        check(own, &[], Ok(()));
        check(own, &cluster, Ok(()));
    }
    for other in ["0.0.0.0:80", "10.0.0.1:80", "[::]:80", "[::ffff:10.0.0.1]:80"] {
        check(other, &[], Err(&["--token-file"]));
        check(other, &tokens, Ok(()));
        check(other, &[("insecure", "yes")], Ok(()));
        check(other, &cluster, Err(&["--token-file", "--peer-secret-file"]));
        check(other, &[&cluster[..], &tokens].concat(), Err(&["--peer-secret-file"]));
        check(other, &[&cluster[..], &secret].concat(), Err(&["--token-file"]));
        check(other, &[&cluster[..], &secret, &tokens].concat(), Ok(()));
        check(
            other,
            &[&cluster[..], &secret, &tokens, &[("peer-auth", "prefer")]].concat(),
            Err(&["--peer-secret-file"]),
        );
        check(
            other,
            &[&cluster[..], &secret, &[("auth", "warn"), ("token-file", "t")]].concat(),
            Err(&["--token-file"]),
        );
        check(other, &[&cluster[..], &[("insecure", "yes")]].concat(), Ok(()));
    }
}

/// Goal: a node whose TLS cannot work as it is named does not start, and is told why.
#[test]
fn tls_fits_the_urls() {
    let check =
        |flags: &[(&'static str, &str)], expect: Result<&str, &str>| match (with(flags, &[], None), expect) {
            (Ok((config, _)), Ok(advertise)) => assert_eq!(config.advertise, advertise, "{flags:?}"),
            (Err(error), Err(reason)) => assert!(error.to_string().contains(reason), "{flags:?}: {error}"),
            (found, _) => panic!("{flags:?}: {found:?}"),
        };
    let tls = [("listen", "127.0.0.1:80"), ("tls-cert", "c"), ("tls-key", "k")];
    let also = |more: &[(&'static str, &'static str)]| [&tls[..], more].concat();
    check(&also(&[]), Ok("https://127.0.0.1:80"));
    check(&also(&[("tls", "allow")]), Ok("http://127.0.0.1:80"));
    check(&also(&[("tls", "allow"), ("advertise", "https://a:1")]), Ok("https://a:1"));
    check(&also(&[("advertise", "http://a:1")]), Err("refuses connections without TLS"));
    check(&[("advertise", "https://a:1")], Err("has no --tls-cert"));
    check(&[("tls-cert", "c")], Err("needs --tls-key"));
    check(&[("tls-key", "k")], Err("needs --tls-cert"));
    for name in ["tls-client-ca", "peer-ca"] {
        check(&[(name, "f")], Err("there is no TLS without them"));
    }
    check(&[("tls", "allow")], Err("there is no TLS without them"));
    check(&also(&[("tls", "off")]), Err("allowed are allow and require"));

    let secure = ("cluster", "https://127.0.0.1:80,https://b:1");
    let plain = ("cluster", "http://127.0.0.1:80,http://b:1");
    check(&also(&[secure]), Err("need --peer-ca"));
    check(&also(&[secure, ("peer-ca", "p")]), Ok("https://127.0.0.1:80"));
    check(&also(&[plain, ("tls", "allow")]), Ok("http://127.0.0.1:80"));
    check(&also(&[plain, ("tls", "allow"), ("peer-ca", "p")]), Err("cannot show a certificate"));
    check(
        &also(&[plain, ("tls", "allow"), ("peer-ca", "p"), ("peer-auth", "prefer")]),
        Ok("http://127.0.0.1:80"),
    );
}
