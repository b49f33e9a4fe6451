"""What a benchmark's directory says."""

from __future__ import annotations

import pytest
from oar_bench.layout import BenchmarkError, find_benchmarks


def test_a_benchmark_and_a_directory_of_benchmarks_read_alike(benchmark_directory):
    (single,) = find_benchmarks(benchmark_directory)
    (among,) = find_benchmarks(benchmark_directory.parent)
    assert single == among
    assert single.name == "toy"
    assert set(single.drafts) == {"toy"}


def test_owners_and_holders(benchmark_directory):
    (benchmark,) = find_benchmarks(benchmark_directory)
    shop = benchmark.organisations["Shop"]
    assert [owner.name for owner in shop.with_rows] == ["cassie", "valarie", "zoe"]
    assert shop.holders == {
        "song": ("cassie", "valarie"),
        "order": ("valarie",),
        "label": ("zoe",),
    }


def test_fields_of_a_question_may_be_missing(benchmark_directory):
    (benchmark,) = find_benchmarks(benchmark_directory)
    full, bare, unanswerable, *_ = benchmark.questions
    assert (full.id, full.rows, full.kappa, full.stratum) == ("1", (("a",),), 1, "row-split")
    assert (bare.text, bare.rows, bare.kappa, bare.stratum) == (None, None, None, None)
    assert not bare.unanswerable
    assert unanswerable.unanswerable


def test_schemas_add_organisations_without_rows(benchmark_directory):
    (benchmark_directory / "schemas.json").write_text(
        '{"far": {"owners": {"o1": ["T"], "o2": ["u"]}}, "Shop": {"owners": {"o1": ["x"]}}}'
    )
    (benchmark,) = find_benchmarks(benchmark_directory)
    assert benchmark.organisations["far"].holders == {"t": ("o1",), "u": ("o2",)}
    assert benchmark.organisations["far"].with_rows == ()
    assert "song" in benchmark.organisations["Shop"].holders


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        ("questions.jsonl", "{}\n", "line 1: names no org"),
        ("questions.jsonl", '{"org": "Shop"}\n[1]\n', "line 2: not an object"),
        ("questions.jsonl", "{\n", "line 1: not JSON"),
        ("schemas.json", "{", "not JSON"),
        ("schemas.json", '{"far": {}}', "organisation far has no owners"),
        ("orgs/Shop/catalog.json", "[]", "not a catalog"),
    ],
)
def test_what_is_wrong_is_named(benchmark_directory, file, content, match):
    (benchmark_directory / file).write_text(content)
    with pytest.raises(BenchmarkError, match=match):
        find_benchmarks(benchmark_directory)


def test_no_benchmark(tmp_path):
    with pytest.raises(BenchmarkError, match="no benchmark here"):
        find_benchmarks(tmp_path)
