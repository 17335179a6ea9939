"""Search: find the same place by night, align it, show why.

Run it: python examples/05_search.py (half a minute; no download).
It writes 05_search.html, 05_search.png and 05_search_aligned.png.
"""

import shutil
import tempfile
from pathlib import Path

import likewise as lw
from likewise import samples

with tempfile.TemporaryDirectory() as home:
    # 1. An archive: roofs by day among places cut out of photographs; and the roofs made night, not in it.
    photos, night = samples.archive(home)
    collection = lw.search.Collection.build(photos, Path(home, "index"))  # run again to update
    print(len(collection), "photos;", collection.report)
    # → 97 photos; 97 added, 0 updated, 0 unchanged, 0 removed, 0 unreadable

    # 2. The roofs by night, from a spot beside, the camera turned: found, with a verdict and why.
    result = collection.search(night, k=4)  # a path, an array, several, a video
    best = result[0]
    print(best.name, best.verdict, best.evidence.n > 50, sum(hit.verdict == "same" for hit in result))
    # → day.jpg same True 1
    best.evidence.plot("05_search.png")  # the inliers
    result.page("05_search.html")  # every hit, its verdict and the reasons
    aligned = lw.compare(night, best.path)  # pixel by pixel
    aligned.plot("05_search_aligned.png")  # b warped to a, where it is sure
    print(aligned.level, aligned.verdict)  # → pixels same

    # 3. An update reads what is new and takes out what was deleted.
    shutil.copy(photos / "cat" / "1.jpg", photos / "cat" / "copy of 1.jpg")
    (photos / "moon" / "1.jpg").unlink()
    print(collection.update())  # → 1 added, 0 updated, 96 unchanged, 1 removed, 0 unreadable

    # 4. Copies, what each is, and which to keep; nothing is deleted.
    for group in collection.duplicates():
        print(Path(group.keep).parent.name, [copy.what for copy in group.copies])
    # → cat ['keep', 'exact copy']
    # → motorcycle ['keep', 'turned by 90°', 'mirrored']
    collection.close()
