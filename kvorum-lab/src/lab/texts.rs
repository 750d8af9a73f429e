//! The report's headings and sentences, in each language: one table.
//!
//! `{name}` is a place to be filled. Both languages of a text have the same places; a test holds them to it. What is said of the
//! lab itself (errors, progress, wrk2's report of one run) is English everywhere.

use super::language::Language;

macro_rules! texts {
    ($($name:ident: $english:literal, $russian:literal;)*) => {
        /// A text of the report.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(clippy::doc_markdown, reason = "the documentation of a text is the text")]
        pub enum Text {
            $(#[doc = $english] $name,)*
        }

        impl Text {
            /// Every text.
            #[cfg(test)]
            const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The text in `language`, its places not filled.
            pub const fn of(self, language: Language) -> &'static str {
                match (self, language) {
                    $((Self::$name, Language::En) => $english, (Self::$name, Language::Ru) => $russian,)*
                }
            }
        }
    };
}

texts! {
    // Figures.
    FigureRate: "operations/s", "операций/с";
    FigureMean: "latency, mean", "задержка, средняя";
    FigureP50: "latency, p50", "задержка, p50";
    FigureP90: "latency, p90", "задержка, p90";
    FigureP99: "latency, p99", "задержка, p99";
    FigureP999: "latency, p99.9", "задержка, p99,9";
    FigureMax: "latency, max", "задержка, максимум";
    FigureCpu: "CPU of the cluster per operation", "CPU кластера на операцию";
    FigureMemory: "memory of the cluster, resident", "память кластера (RSS)";
    FigureAlloc: "allocated per operation", "выделено памяти на операцию";
    FigureMaximum: "highest rate, operations/s", "наибольшая нагрузка, операций/с";
    FigureFailed: "failed operations", "неудачных операций";
    WordCpu: "CPU per operation", "CPU на операцию";
    WordMemory: "memory", "память";
    Overloaded: "overloaded", "перегрузка";

    // Conclusions: one change.
    Rose: "{load} {figure} rose from {before} to {after} ({change}, 95 % interval {low} to {high}, {rounds}).",
        "{load}: {figure}: рост с {before} до {after} ({change}; 95-процентный интервал от {low} до {high}; {rounds}).";
    Fell: "{load} {figure} fell from {before} to {after} ({change}, 95 % interval {low} to {high}, {rounds}).",
        "{load}: {figure}: снижение с {before} до {after} ({change}; 95-процентный интервал от {low} до {high}; {rounds}).";
    Rounds: "{count} rounds", "раундов: {count}";
    RoundsIndicative: "{count} rounds: indicative", "раундов: {count}, лишь ориентировочно";
    Unseen: "No difference larger than this can be seen ({rounds}): {list}.",
        "Различий больше этих границ не видно ({rounds}): {list}.";
    UnseenOne: "{figure} {bound}", "{figure} {bound}";
    Noisy: "Not told from noise ({rounds}): {list}.", "Не отличить от шума ({rounds}): {list}.";
    NoisyOne: "{figure} from {before} to {after}, anything between {low} and {high} fits",
        "{figure} с {before} до {after}, возможно всё от {low} до {high}";
    Once: "Measured in one common round only, so nobody can tell it from noise: {list}.",
        "Есть лишь один общий раунд, от шума не отличить: {list}.";
    OnceOne: "{figure} {before} and {after}", "{figure} {before} и {after}";
    LeftOut: "Left out: {list}.", "Не учтены: {list}.";
    Disturbed: "Doubtful, because most rounds were disturbed: {list}.", "Сомнительно, так как помех было большинство: {list}.";
    RoundSteal: "round {round} (the hypervisor took {cores} cores)", "раунд {round} (гипервизор отнял {cores} ядра)";
    RoundLate: "round {round} for {figures} (the driver woke up to {lag} late)",
        "раунд {round} для {figures} (генератор нагрузки опоздал на {lag})";
    RoundLateUnknown: "round {round} for {figures} (the driver woke late)",
        "раунд {round} для {figures} (генератор нагрузки опоздал)";
    OverloadedWas: "{configuration} was overloaded: {kept} of {wanted} operations/s were kept at the worst ({rounds} of {all} rounds). Nothing is compared.",
        "{configuration}: перегрузка: в худшем случае выдержано {kept} из {wanted} операций/с ({rounds} из {all} раундов). Сравнения нет.";

    // Conclusions: profiles.
    Frames: "Of the CPU samples ({before} and {after}): {list}.", "В профиле CPU (отсчётов: {before} и {after}): {list}.";
    FrameRose: "`{frame}` rose from {before} to {after} % ({points} ± {error} points)",
        "`{frame}` вырос с {before} до {after} % ({points} ± {error} п. п.)";
    FrameFell: "`{frame}` fell from {before} to {after} % ({points} ± {error} points)",
        "`{frame}` снизился с {before} до {after} % ({points} ± {error} п. п.)";
    FramesNone: "No frame's share of the CPU samples ({before} and {after}) changed by more than its error (± {error} points).",
        "Ни у одной функции доля в профиле CPU (отсчётов: {before} и {after}) не изменилась больше своей погрешности (± {error} п. п.).";
    FramesOtherProgram: "Their profiles are of different programs: no frames to compare.",
        "Профили сняты с разных программ: сравнивать функции нельзя.";

    // The control.
    ControlHeading: "How often does this method cry wolf here?", "Как часто этот метод ошибается здесь?";
    ControlNone: "Unknown: no two configurations of this run are equal. A control would tell (control = true in the lab file).",
        "Неизвестно: в этом прогоне нет одинаковых конфигураций. Ответ даст контроль (control = true в файле лаборатории).";
    ControlSays: "Configurations between which nothing differs were compared ({judged} comparisons). At 5 % each by itself, false differences expected: {expected}; found: {by_itself}. This report's own bound would have named: {named}.",
        "Одинаковые конфигурации сравнивались между собой (сравнений: {judged}). При уровне 5 % для каждого сравнения ожидается ложных различий: {expected}, найдено: {by_itself}. По порогу этого отчёта были бы названы: {named}.";
    ControlWorst: "The largest difference between equals: {load} {figure}, {change}. Comparisons are granted at least the noise of equals.",
        "Самое большое различие одинаковых: {load}, {figure}, {change}. Для всех сравнений принят шум не меньше этого.";
    Discoveries: "{named} of {judged} comparisons are named; at most 5 % of those named are expected to be chance (Benjamini and Hochberg).",
        "Названо различий: {named} из {judged} сравнений; ожидается, что случайных среди них не больше 5 % (Бенджамини и Хохберг).";
    Indicative: "Fewer than five rounds: everything here is indicative.",
        "Раундов меньше пяти: все выводы лишь ориентировочные.";
    NothingCompared: "None: nothing was compared.", "Выводов нет: сравнивать нечего.";

    // Warnings.
    Warnings: "Warnings: {count}", "Предупреждений: {count}";
    WarnQuick: "This was a quick run: windows of seconds, to see that it works. Its figures are not results.",
        "Это был пробный прогон: окна в несколько секунд, только чтобы увидеть, что всё работает. Его числа — не результат.";
    WarnNotMeasured: "NOT MEASURED: {error}", "НЕ ИЗМЕРЕНО: {error}";
    WarnProfileRate: "the rate was not kept ({kept}/s of {wanted}/s, {failed} failed): these profiles are of something else.",
        "нагрузка не выдержана ({kept}/с из {wanted}/с, неудачных: {failed}): эти профили — о другом.";
    WarnRate: "THE RATE WAS NOT KEPT: {kept}/s of {wanted}/s; its latencies are no result.",
        "НАГРУЗКА НЕ ВЫДЕРЖАНА: {kept}/с из {wanted}/с; такие задержки — не результат.";
    WarnFailed: "operations failed: {failed} ({kinds}).", "неудачных операций: {failed} ({kinds}).";
    WarnBodies: "WRONG BODIES: {count}.", "НЕВЕРНЫХ ОТВЕТОВ: {count}.";
    WarnLate: "the driver itself woke late (p99.9 {lag}): much of p99.9 and above is the machine's, not the nodes'.",
        "генератор нагрузки сам опаздывал (p99,9 {lag}): p99,9 и выше во многом от машины, а не от узлов.";
    WarnSteal: "the hypervisor took {cores} cores.", "гипервизор отнял ядер: {cores}.";
    WarnMissing: "not measured yet.", "ещё не измерено.";
    Repeat: "repeat {number}", "повтор {number}";
    TaskProfiles: "profiles", "профили";
    TaskMaximum: "highest rate", "наибольшая нагрузка";

    // Headings.
    Conclusions: "Conclusions", "Выводы";
    Figures: "Figures", "Числа";
    FiguresOf: "{load}: figures", "{load}: числа";
    Changes: "Changes", "Изменения";
    ChangesOf: "{load}: changes", "{load}: изменения";
    ByPercentile: "Latency by percentile", "Задержка по процентилям";
    OverTime: "Over time, the worst repeat at each second", "По времени: худший из повторов в каждую секунду";
    Throughput: "operations/s", "операций/с";
    P99OverTime: "p99 of each second", "p99 каждой секунды";
    Processes: "{load}: processes of the nodes", "{load}: процессы узлов";
    ProcessesHeading: "Processes of the nodes", "Процессы узлов";
    ProcessesWarmUp: "warm-up, s, the longest", "прогрев, с, наибольший";
    ProcessesNotSettled: "{seconds}, not settled in {count} of {all}", "{seconds}, не установилось в {count} из {all}";
    ProcessesCores: "CPU, cores, mean", "CPU, ядер, в среднем";
    ProcessesMemory: "memory, the most", "память, наибольшая";
    ProcessesThreads: "threads, the most", "потоков, наибольшее число";
    PausesPerMinute: "GC pauses per minute", "пауз GC в минуту";
    PausesLongest: "GC pauses, the longest", "пауза GC, наибольшая";
    PausesShare: "GC pauses, % of the time", "паузы GC, % времени";
    ProcessesNote: "Over all repeats, with all processes that the nodes started. Not settled: at the end of the warm-up an operation still cost less CPU time in each part than before.",
        "По всем повторам, вместе с дочерними процессами. Не установилось: к концу прогрева операция всё ещё стоила с каждым отрезком меньше времени CPU.";
    CoresOverTime: "CPU of the processes, cores", "CPU процессов, ядер";
    MemoryOverTime: "memory of the processes, MiB", "память процессов, МиБ";
    PausesOverTime: "GC pauses of all repeats", "паузы GC всех повторов";
    FlameGraphs: "Flame graphs", "Флеймграфы";
    FlameNote: "Of all nodes together, under {load} at its rate. Choose two pictures of a row to see them side by side, with the difference in the middle: red has gained, blue has lost, in absolute values. Click a frame to zoom in, a lower one to go back.",
        "Все узлы вместе, нагрузка {load}. Выберите два рисунка одной строки, чтобы увидеть их рядом, а между ними — разность: красное выросло, синее уменьшилось, в абсолютных величинах. Щелчок по функции увеличивает её, щелчок по нижней возвращает назад.";
    Waits: "{load}: waits, µs per operation", "{load}: ожидания, мкс на операцию";
    WaitsNote: "Of the lock profile, over all nodes. Waits of one operation lie within each other: compare each with itself.",
        "Из профиля lock, все узлы. Ожидания одной операции вложены друг в друга: сравнивайте каждое только с ним самим.";
    Shifts: "{load}, CPU samples: {before} → {after}", "{load}, отсчёты CPU: {before} → {after}";
    ShiftsNote: "Largest changes first. ± is the error by the counts of samples, so that all frames of the table hold at 95 %; changes beyond it are marked *.",
        "Сначала самые большие изменения. ± — погрешность по числу отсчётов, одновременно для всех строк на уровне 95 %; превышающие её отмечены *.";
    ShiftFrame: "frame, with what it calls", "функция вместе с вызванными";
    ShiftBefore: "before, %", "было, %";
    ShiftAfter: "after, %", "стало, %";
    ShiftPoints: "points", "п. п.";
    WhereCpuWent: "Where the CPU went", "Куда ушло время CPU";
    Behind: "Behind the figures", "Подробности";
    ProfileCost: "What the profiles cost: CPU per operation, µs", "Цена профилей: CPU на операцию, мкс";
    ProfileCostNote: "One window each, one after the other on one cluster. Naming the stacks comes after it.",
        "По одному окну, одно за другим на одном кластере. Имена функций определяются после окна.";
    NoProfile: "no profile", "без профиля";
    Windows: "Every window", "Все окна";
    WindowsNote: "Windows under profiles are shown here and used nowhere else.",
        "Окна под профилями показаны только здесь и больше нигде не используются.";
    Configuration: "configuration", "конфигурация";
    Step: "step", "шаг";
    Load: "load", "нагрузка";
    RateWanted: "rate wanted", "задано";
    Kept: "kept", "выдержано";
    Failed: "failed", "неудачных";
    Steal: "steal, cores", "отнято ядер";
    DriverLate: "driver late, p99.9", "опоздание генератора, p99,9";
    Maxima: "Highest rates, one search each", "Наибольшие нагрузки, один поиск на каждую";
    ClosedLoop: "closed loop", "без заданной нагрузки";
    HighestRate: "highest rate", "наибольшая нагрузка";
    P99UpTo: "p99 up to", "p99 не больше";
    RatesTried: "rates tried", "проверено";
    NoneFound: "none", "нет";
    Commands: "Commands and reports", "Команды и отчёты";
    CommandsOf: "Commands and reports: {configuration}", "Команды и отчёты: {configuration}";
    LabFile: "The lab file", "Файл лаборатории";
    ControlTable: "Equal configurations", "Одинаковые конфигурации";
    SamePlots: "The same with plots and flame graphs: `report.html`.", "То же с графиками и флеймграфами: `report.html`.";
    Legend: "± is the confidence interval of the mean at 95 % (Student's t over the repeats). Changes are ratios of geometric means with their interval at 95 %, paired by round. * is named among the conclusions; without a mark it may be chance; ? was measured once, and nobody can tell. Latencies count from the moment a request was due.",
        "± — доверительный интервал среднего на уровне 95 % (t Стьюдента по повторам). Изменения — отношения средних геометрических с 95-процентным интервалом, парами по раундам. * — названо в выводах; без отметки может быть случайностью; ? — измерено один раз, судить нельзя. Задержка считается от момента, когда запрос должен был уйти.";

    // Facts.
    FactLabel: "label", "метка";
    FactMachine: "machine", "машина";
    FactCores: "{cores} cores, {cpu}, {memory}", "ядер: {cores}, {cpu}, {memory}";
    FactKernel: "kernel", "ядро ОС";
    FactNodes: "nodes", "узлы";
    FactLab: "lab", "лаборатория";
    FactRepeats: "repeats", "повторы";
    FactDriver: "driver", "генератор нагрузки";
    FactDriverIs: "on the same machine as the nodes, not pinned", "на той же машине, что и узлы, не привязан к ядрам";
    FactTimes: "first and last step began", "начало первого и последнего шага";
    FactTimesAre: "{first} and {last}", "{first} и {last}";

    // The page's controls, and axes.
    Seconds: "seconds", "секунды";
    Latency: "latency", "задержка";
    ShareOfRequests: "share of requests", "доля запросов";
    NothingSucceeded: "Nothing succeeded.", "Ни одна операция не удалась.";
    NoResult: "(overloaded: no result)", "(перегрузка: не результат)";
    NothingRecorded: "Nothing was recorded: no such event in this time.", "Ничего не записано: за это время таких событий не было.";
    FindFrames: "find frames", "найти функцию";
    AsFile: "as a file", "отдельным файлом";
    Difference: "difference", "разность";
    BeforeWord: "before", "было";
    OfShown: "of what is shown", "от показанного";
    Samples: "samples", "отсчётов";
    BytesWord: "bytes", "байт";
    Microseconds: "microseconds", "микросекунд";
    LogAxis: "logarithmic axis: a spike would flatten the rest", "логарифмическая ось: выброс сплющил бы остальное";
}

impl Text {
    /// The text with its places filled.
    pub fn fill(self, language: Language, places: &[(&str, &str)]) -> String {
        let mut out = String::new();
        let mut rest = self.of(language);
        while let Some((before, behind)) = rest.split_once('{') {
            let (name, behind) = behind.split_once('}').unwrap_or((behind, ""));
            out.push_str(before);
            out.push_str(places.iter().find(|place| place.0 == name).map_or("", |place| place.1));
            rest = behind;
        }
        out + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: no text loses a value in translation, none is left untranslated by mistake. Method: the places of both languages, and
    /// letters of each alphabet.
    #[test]
    fn both_languages_say_the_same() {
        let places = |text: &'static str| -> BTreeSet<&str> {
            text.split('{').skip(1).filter_map(|part| part.split('}').next()).collect()
        };
        for &text in Text::ALL {
            let [english, russian] = [text.of(Language::En), text.of(Language::Ru)];
            assert_eq!(places(english), places(russian), "{text:?}");
            let is_cyrillic = |text: &str| text.chars().any(|c| ('А'..='я').contains(&c));
            assert!(!is_cyrillic(english), "{text:?}: {english}");
            let is_only_places = matches!(text, Text::UnseenOne);
            assert!(is_cyrillic(russian) || is_only_places, "{text:?}: {russian}");
        }
    }

    /// Goal: places are filled, and a value is never read as a place. Method: a value with brackets.
    #[test]
    fn places_are_filled() {
        let filled =
            Text::OnceOne.fill(Language::En, &[("figure", "{before}"), ("before", "1"), ("after", "2")]);
        assert_eq!(filled, "{before} 1 and 2");
    }
}
