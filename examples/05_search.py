"""Search: the same thing again, in other light and from another spot, with the reasons.

Run it: python examples/05_search.py (some twenty seconds; no download).
It writes 05_search.html and 05_search.png.
"""

import shutil
import tempfile
from pathlib import Path

import likewise as lw
from likewise import media, samples

with tempfile.TemporaryDirectory() as home:
    # 1. A folder of photos: 94 places cut out of photographs, and a workshop by day. Index it once.
    photos, queries = Path(home, "photos"), Path(home, "queries")
    samples.gallery(photos)
    day, night = samples.pair()
    media.write_image(photos / "workshop" / "day.jpg", day)
    collection = lw.search.Collection.build(photos, Path(home, "index"))
    print(len(collection), "photos;", collection.report)
    # → 95 photos; 95 added, 0 updated, 0 unchanged, 0 removed, 0 unreadable

    # 2. The workshop by night, from a spot beside, the camera turned.
    result = collection.search(night, k=4, verify=2)  # a path, an array, several, a video
    best = result[0]
    print(Path(best.path).name, best.evidence.kind, best.evidence.n > 100, best.probability > 0.5)
    # → day.jpg fundamental True True
    best.evidence.plot("05_search.png")  # the inliers
    result.page("05_search.html")  # every hit, its verdict and the reasons

    # 3. Grass is found among other patches of it by its vector alone; the inliers say that it is so.
    grass = [q for q in samples.queries(queries) if q.place.startswith("grass/")]
    query = {q.path.name: q for q in grass}["3-another-crop.jpg"]
    alone = collection.search(query.path, k=3, rerank=False, verify=0)  # the shortlist
    whole = collection.search(query.path, k=3, verify=3)
    print([Path(hit.path).name for hit in alone], [Path(hit.path).name for hit in whole])
    # → ['3.jpg', '5.jpg', '4.jpg'] ['3.jpg', '5.jpg', '4.jpg']
    print(whole[0].verdict, [hit.evidence.n > 100 for hit in whole])
    # → same [True, False, False]

    # 4. An update embeds what is new and takes out what was deleted. Copies are grouped.
    shutil.copy(photos / "cat" / "1.jpg", photos / "cat" / "copy of 1.jpg")
    (photos / "moon" / "1.jpg").unlink()
    print(collection.update())  # → 1 added, 0 updated, 94 unchanged, 1 removed, 0 unreadable
    print([[Path(p).name for p in group] for group in collection.duplicates()])
    # → [['1.jpg', 'copy of 1.jpg']]
    collection.close()

    # 5. One pair, at the level that fits: two photos pixel by pixel, two folders as sets.
    result = lw.compare(photos / "cat", photos / "coffee")
    print(f"{result.level}, because {result.why}")
    # → sets, because both hold at most 200 images (7 and 6)
