"""The tab of runs, as a person uses it: start the sample run, watch its curve grow, cancel it."""

from __future__ import annotations

from typing import Any

POINTS = "Number(document.querySelector('#panel-runs .chart-line')?.dataset.points ?? 0)"


def test_the_sample_run_is_started_watched_and_cancelled(visit: Any) -> None:
    v = visit("runs")
    v.wait("#panel-runs h1")
    v.page.get_by_role("button", name="Start the sample run").click()
    v.wait(".run[data-state=running]", heavy=True)
    shown = "s => !document.querySelector(`.run-detail ${s}`).hidden"
    v.wait(".run-detail .card", heavy=True)
    assert v.page.evaluate(shown, ".nothing-logged") != v.page.evaluate(shown, ".chart-box")  # words or a curve
    v.until(f"{POINTS} >= 2", heavy=True)
    assert v.page.locator(".nothing-logged").is_hidden()
    first = v.page.evaluate(POINTS)
    v.until(f"was => {POINTS} > was", first, heavy=True)
    assert v.page.locator("#panel-runs .config tr").count() >= 3
    chosen = v.page.locator(".run[aria-selected=true]").get_attribute("data-run")
    assert v.page.evaluate("decodeURIComponent(location.hash)") == f"#runs/{chosen}"
    names = v.page.locator("#panel-runs select option").all_inner_texts()
    assert len(names) >= 1
    v.page.locator("#panel-runs select").select_option(names[-1])
    v.until("name => document.querySelector('#panel-runs .chart-line')?.dataset.series === name", names[-1])
    v.page.locator(".run-head button", has_text="Cancel").click()
    v.wait(f".run[data-run='{chosen}'][data-state=stopped]", heavy=True)
    v.wait(".run-head .badge.stopped")
    v.page.reload()  # the address leads to the run
    v.wait(f".run[data-run='{chosen}'][aria-selected=true]")
    v.until(f"{POINTS} >= 2")
