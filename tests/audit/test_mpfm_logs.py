"""From raw lines to windows: layouts, templates, windows, and what is said when a log cannot be read."""

import gzip
import json
import warnings

import numpy as np
import pytest

from assay._core.errors import InputError
from assay.audit.mpfm import LogWindower, LogWindows
from assay.audit.mpfm.drain import Drain, mask
from assay.audit.mpfm.layouts import LONGEST_LINE, detect_layout, layout_of, parse_lines

SYSLOG = [
    f"Jun 14 15:{i // 60:02d}:{i % 60:02d} combo app[{i}]: request {i} from 10.0.0.{i % 9} took {i} ms"
    for i in range(105)
]


# ------------------------------------------------------------------------------------------------------- windows


def test_105_lines_make_five_full_windows_and_one_of_five():
    windows = LogWindower(size=20, step=20).fit_transform(SYSLOG, "app")
    assert windows.mask.sum(axis=1).tolist() == [20, 20, 20, 20, 20, 5]


def test_every_line_is_in_a_window_whatever_size_and_step():
    for size, step in ((20, 7), (7, 7), (200, 3), (1, 1)):
        windows = LogWindower(size=size, step=step).fit_transform(SYSLOG, "app")
        assert np.unique(windows.lines[windows.mask]).tolist() == list(range(105))


def test_a_line_with_two_block_ids_goes_to_both_sessions():
    lines = ["081109 203615 148 INFO a.B: got blk_1", "081109 203616 148 INFO a.B: copied blk_1 to blk_-2"]
    windows = LogWindower("session", session_regex=r"blk_-?\d+").fit_transform(lines, "hdfs")
    assert windows.session.tolist() == ["blk_1", "blk_-2"]
    assert windows.mask.sum(axis=1).tolist() == [2, 1]


def test_sessions_take_their_labels_by_key():
    lines = ["081109 203615 148 INFO a.B: got blk_1", "081109 203616 148 INFO a.B: got blk_2"]
    windower = LogWindower("session", session_regex=r"blk_-?\d+")
    assert windower.fit_transform(lines, "hdfs", {"blk_1": 0, "blk_2": 1}).y.tolist() == [0, 1]


def test_time_windows_end_where_the_log_is_silent():
    lines = [f"2024-01-01 00:00:{s:02d} hello" for s in (0, 1, 2, 30, 31)]
    windows = LogWindower("time", gap=10).fit_transform(lines, "app")
    assert windows.mask.sum(axis=1).tolist() == [3, 2]


def test_time_windows_sort_lines_that_are_out_of_order_and_say_so():
    lines = [f"2024-01-01 00:00:{s:02d} hello" for s in (0, 30, 1, 31)]
    with pytest.warns(
        UserWarning, match=r"^app: 1 lines are earlier than the line before them \(the first is line 3\)"
    ):
        windows = LogWindower("time", gap=10).fit_transform(lines, "app")
    assert windows.numbers[windows.lines[0][:2]].tolist() == [1, 3]


def test_a_window_is_anomalous_if_any_of_its_lines_is():
    lines = [
        f"{label} 1117838570 2005.06.03 R02 2005-06-03-15.42.50.67 R02 RAS KERNEL INFO cache error"
        for label in "--X---"
    ]
    assert LogWindower(size=2, step=2).fit_transform(lines, "bgl").y.tolist() == [0, 1, 0]


def test_the_label_is_no_part_of_the_message():
    line = "APPREAD 1117838570 2005.06.03 R02 2005-06-03-15.42.50.67 R02 RAS KERNEL FATAL data TLB error interrupt"
    assert parse_lines([line], detect_layout([line])).content == ["data TLB error interrupt"]


def test_windows_are_indexed_as_an_array_is():
    windows = LogWindower().fit_transform(SYSLOG, "app")
    assert windows[[4, 1]].lines[:, 0].tolist() == [80, 20]
    assert len(windows[windows.mask.all(axis=1)]) == 5


def test_joined_windows_hold_the_same_embeddings():
    one, other = (LogWindower(size=size).fit_transform(SYSLOG, name) for size, name in ((20, "a"), (10, "b")))
    joined = LogWindows.concat([one, other])
    assert np.array_equal(joined.X[: len(one)], one.X)
    assert np.array_equal(joined.X[len(one) :, :10], other.X)


# ----------------------------------------------------------------------------------------------------- templates


def test_lines_that_differ_in_an_address_and_a_number_share_a_template():
    windows = LogWindower().fit_transform(
        ["Jun 14 15:16:01 h app[1]: got 3 from 10.0.0.1", "Jun 14 15:16:02 h app[2]: got 77 from 10.9.8.7"], "app"
    )
    assert windows.templates == ["got <num> from <ip>"]


def test_template_numbers_are_the_same_after_saving_and_reading():
    drain = Drain()
    messages = [mask(f"user u{i} did thing {i % 7} with x{i % 3} on day {i % 5}") for i in range(200)]
    for message in messages:
        drain.add(message)
    again = Drain.from_dict(json.loads(json.dumps(drain.to_dict())))
    assert [again.match(m) for m in messages] == [drain.match(m) for m in messages]


def test_matching_learns_nothing():
    drain = Drain()
    drain.add("disk full on <path>")
    before = json.dumps(drain.to_dict())
    assert drain.match("a message that nobody has seen") is None
    assert json.dumps(drain.to_dict()) == before


def test_a_message_that_fits_no_template_has_an_embedding_of_its_own():
    windower = LogWindower(size=1, step=1).fit(SYSLOG, "app")
    windows = windower.transform(
        [*SYSLOG[:1], "Jun 14 15:16:01 h kernel: panic", "Jun 14 15:16:01 h kernel: fire"], "app"
    )
    assert windows.templates[1:] == ["panic", "fire"]
    assert not np.array_equal(windows.vectors[1], windows.vectors[2])


def test_a_log_that_was_never_fitted_can_be_cut():
    assert LogWindower().transform(SYSLOG, "new").shape == (6, 20)


def test_a_fitted_windower_survives_json():
    windower = LogWindower(size=5, step=5).fit(SYSLOG, "app")
    again = LogWindower.from_dict(json.loads(json.dumps(windower.to_dict())))
    one, other = (w.transform(SYSLOG, "app") for w in (windower, again))
    assert np.array_equal(one.ids, other.ids)
    assert one.templates == other.templates


def test_another_encoder_than_the_models_is_refused():
    state = LogWindower().fit(SYSLOG, "app").to_dict() | {"encoder": "Encoder(384)"}
    with pytest.raises(
        InputError, match=r"^the model's templates were embedded by Encoder\(384\), not by hashed trigrams"
    ):
        LogWindower.from_dict(state)


# ------------------------------------------------------------------------------------------------------- layouts

LAYOUT_OF = {
    "Apache": "apache", "BGL": "bgl", "HDFS": "hdfs", "HPC": "hpc", "Hadoop": "log4j", "Linux": "syslog",
    "OpenSSH": "syslog", "Spark": "spark", "Thunderbird": "thunderbird", "Zookeeper": "log4j",
}  # fmt: skip


@pytest.mark.parametrize("system", sorted(LAYOUT_OF))
def test_the_layout_of_a_real_log_is_found_and_its_times_are_read(real_data, system):
    path = real_data / "loghub" / f"{system}_2k.log.gz"
    if not path.is_file():
        pytest.skip(f"{path.name} is not here")
    lines = gzip.decompress(path.read_bytes()).decode("utf-8", errors="replace").splitlines()
    layout = detect_layout(lines)
    parsed = parse_lines(lines, layout)
    assert layout.name == LAYOUT_OF[system]
    assert np.isnat(parsed.times).mean() < 0.01


def test_bgl_has_143_labelled_lines(real_data):
    lines = gzip.decompress((real_data / "loghub" / "BGL_2k.log.gz").read_bytes()).decode().splitlines()
    assert parse_lines(lines, detect_layout(lines)).labels.sum() == 143


def test_json_lines_and_the_journal_are_read():
    lines = [
        json.dumps({"__REALTIME_TIMESTAMP": str(1_700_000_000_000_000 + i), "MESSAGE": f"hello {i}"}) for i in range(9)
    ]
    parsed = parse_lines(lines, detect_layout(lines))
    assert parsed.content[3] == "hello 3"
    assert str(parsed.times[0])[:19] == "2023-11-14T22:13:20"


def test_a_format_string_names_the_fields():
    parsed = parse_lines(["ERR|2024-05-01 10:00:00|db|disk full"], layout_of("<Label>|<Time>|<Node>|<Content>"))
    assert parsed.content == ["disk full"]
    assert parsed.labels.tolist() == [1]
    assert str(parsed.times[0])[:19] == "2024-05-01T10:00:00"


def test_a_december_is_followed_by_a_new_year():
    parsed = parse_lines(["Dec 31 23:59:59 h a: x", "Jan  1 00:00:01 h a: x"], layout_of("syslog"))
    assert parsed.times[1] - parsed.times[0] == np.timedelta64(2, "s")


# ----------------------------------------------------------------------------------------------------- bad input


def test_lines_that_do_not_fit_are_shown():
    with pytest.raises(
        InputError, match=r"^app: 4 of 4 lines do not fit the format '<Time>;<Content>' \('one'; 'two'; 'three'\); give"
    ):
        LogWindower(layout="<Time>;<Content>").fit(["one", "two", "three", "four"], "app")


def test_a_format_without_a_message_is_refused():
    with pytest.raises(
        InputError, match=r"^log format 'bgll': expected auto, one of json, bgl, .*'<Time> <Level> <Content>'$"
    ):
        LogWindower(layout="bgll").fit(SYSLOG, "app")


def test_an_empty_log_is_refused():
    with pytest.raises(InputError, match=r"^app: the log has no lines$"):
        LogWindower().fit(["", " "], "app")


def test_one_giant_line_is_cut_with_a_warning():
    with pytest.warns(UserWarning, match=r"^app: 1 lines are very long and were cut$"):
        windows = LogWindower().fit_transform([*SYSLOG, SYSLOG[0] + "x" * 10 * LONGEST_LINE], "app")
    assert len(windows.messages[-1]) < LONGEST_LINE


def test_time_windows_of_a_log_without_times_are_refused():
    with pytest.raises(InputError, match=r"^app: mode='time' needs timestamps, and the log has none that we can read"):
        LogWindower("time").fit_transform(["hello", "world"], "app")


def test_sessions_need_an_expression():
    with pytest.raises(InputError, match=r"^mode='session' needs session_regex, such as"):
        LogWindower("session").fit(SYSLOG, "app")


def test_an_expression_that_is_found_nowhere_is_refused():
    with pytest.raises(InputError, match=r"^session_regex 'blk_\\\\d\+' is found in no line; the first is 'Jun 14"):
        LogWindower("session", session_regex=r"blk_\d+").fit_transform(SYSLOG, "app")


def test_too_few_labels_are_refused():
    with pytest.raises(InputError, match=r"^app: 3 labels for 105 lines; give one a line$"):
        LogWindower().fit_transform(SYSLOG, "app", [0, 1, 0])


def test_a_session_without_a_label_is_named():
    with pytest.raises(InputError, match=r"^app: session '10.0.0.0' has no label; 9 are missing$"):
        LogWindower("session", session_regex=r"10\.0\.0\.\d", size=30).fit_transform(SYSLOG, "app", {"x": 1})


def test_ordinary_logs_raise_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LogWindower().fit_transform(SYSLOG, "app")
