"""Small synthetic files in the formats that public examples read, with their columns, shapes and vocabularies.

`made` returns the file of a name. `prepare` writes the files that an example's shell commands would download into the
working directory. The functions that write a file take its path.
"""

from __future__ import annotations

import io
import os
import random
import string
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RATINGS, USERS, MOVIES = 20_000, 610, 9_724
WEATHER_ROWS = 12_000
MOTOR_ROWS = {"FordA_TRAIN.tsv": 1_000, "FordA_TEST.tsv": 200}
PATIENTS = 303
CITIZENS = 4_000
PAYMENTS = 20_000
SENTENCES = 1_000
CHARACTERS = 60_000
REVIEWS_A_FOLDER = 300
PETS = 1_096
CAPTCHAS = 320
FACES = 96


def made(folder: Path, name: str) -> Path:
    """Return the file of that name in a folder; it is written if missing. Raises KeyError for an unknown name."""
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Several processes may write at once: each writes its own file, and the last one renamed stays.
        own = folder / f"{os.getpid()}-{name}"
        FILES[name](own)
        own.replace(path)
    return path


def prepare(name: str, folder: Path) -> None:
    """Write the files that the shell commands of an example would download into `folder`."""
    FOLDERS[name](folder)


def _table(path: Path, header: Sequence[str] | None, rows: Iterable[Sequence[Any]], separator: str = ",") -> None:
    lines = [separator.join(header)] if header else []
    lines += [separator.join(map(str, row)) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _zipped(path: Path, **members: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def _bytes_of(write: Callable[[Path], None], beside: Path) -> bytes:
    part = beside.with_suffix(".part")
    write(part)
    content = part.read_bytes()
    part.unlink()
    return content


def _movielens(path: Path) -> None:
    """Write ratings.csv and movies.csv. Every user and movie has a rating, so that embeddings have their real sizes."""
    rng = random.Random(0)
    pairs = [(1 + n % USERS, 1 + n % MOVIES) for n in range(MOVIES)]
    pairs += [(rng.randint(1, USERS), rng.randint(1, MOVIES)) for _ in range(RATINGS - MOVIES)]
    ratings = [(user, movie, rng.randint(1, 10) / 2, 964_982_703) for user, movie in pairs]
    movies = [(n, f"Film {n} (1995)", "Comedy|Drama") for n in range(1, MOVIES + 1)]
    parts = {
        "ml-latest-small/ratings.csv": (("userId", "movieId", "rating", "timestamp"), ratings),
        "ml-latest-small/movies.csv": (("movieId", "title", "genres"), movies),
    }
    _zipped(path, **{name: _bytes_of(lambda part, t=table: _table(part, *t), path) for name, table in parts.items()})


_WEATHER: tuple[str, ...] = (
    "p (mbar)",
    "T (degC)",
    "Tpot (K)",
    "Tdew (degC)",
    "rh (%)",
    "VPmax (mbar)",
    "VPact (mbar)",
)
_WEATHER += ("VPdef (mbar)", "sh (g/kg)", "H2OC (mmol/mol)", "rho (g/m**3)", "wv (m/s)", "max. wv (m/s)", "wd (deg)")


def _weather(path: Path) -> None:
    """Write 14 values every ten minutes."""
    rng = random.Random(0)

    def row(n: int) -> list[Any]:
        day, minutes = divmod(n * 10, 24 * 60)
        time = f"{1 + day % 28:02}.{1 + day // 28 % 12:02}.2009 {minutes // 60:02}:{minutes % 60:02}:00"
        return [time, *(round(rng.gauss(10.0, 3.0), 2) for _ in _WEATHER)]

    content = _bytes_of(lambda part: _table(part, ("Date Time", *_WEATHER), map(row, range(WEATHER_ROWS))), path)
    _zipped(path, **{"jena_climate_2009_2016.csv": content})


def _motor(rows: int, path: Path) -> None:
    """Write rows of a label, -1 or 1, and 500 values of a sensor."""
    rng = random.Random(rows)
    _table(path, None, ([2 * (n % 2) - 1, *(f"{rng.gauss(0, 1):.4f}" for _ in range(500))] for n in range(rows)), "\t")


def _five_minutes(path: Path) -> None:
    """Write a value every five minutes for two weeks."""
    rng = random.Random(0)
    days = 14
    times = (f"2014-04-{1 + d:02} {m // 60:02}:{m % 60:02}:00" for d in range(days) for m in range(0, 24 * 60, 5))
    _table(path, ("timestamp", "value"), ((time, round(rng.gauss(20, 5), 4)) for time in times))


def _patients(path: Path) -> None:
    """Write rows of 13 features of a heart, and whether it is ill."""
    rng = random.Random(0)
    columns = ("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca")
    ranges = (
        (29, 77),
        (0, 1),
        (0, 4),
        (94, 200),
        (126, 564),
        (0, 1),
        (0, 2),
        (71, 202),
        (0, 1),
        (0, 6),
        (1, 3),
        (0, 3),
    )
    kinds = ("fixed", "normal", "reversible")
    rows = (
        [*(rng.randint(*one) for one in ranges), rng.randint(0, 3), rng.choice(kinds), rng.randint(0, 1)]
        for _ in range(PATIENTS)
    )
    _table(path, (*columns, "thal", "target"), rows)


_CENSUS: tuple[Sequence[Any], ...] = (
    range(17, 91),
    (" Private", " State-gov", " Self-emp-inc", " Federal-gov", " Local-gov"),
    range(12_285, 1_484_705, 1_000),
    (" Bachelors", " HS-grad", " 11th", " Masters", " Some-college", " Doctorate"),
    range(1, 17),
    (" Never-married", " Divorced", " Widowed", " Married-civ-spouse"),
    (" Adm-clerical", " Exec-managerial", " Sales", " Craft-repair", " Tech-support"),
    (" Not-in-family", " Husband", " Wife", " Own-child"),
    (" White", " Black", " Other", " Asian-Pac-Islander"),
    (" Male", " Female"),
    range(0, 99_999, 500),
    range(0, 4_356, 100),
    range(1, 99),
    (" United-States", " Cuba", " Jamaica", " India", " Mexico"),
    (" <=50K", " >50K"),
)


def _census(path: Path, *, first_line: str | None = None, dot: str = "") -> None:
    """Write 15 columns of the adult census. The test file starts with a comment and ends each label with a dot."""
    rng = random.Random(0)
    rows: list[list[Any]] = [[rng.choice(column) for column in _CENSUS] for _ in range(CITIZENS)]
    _table(path, [first_line] if first_line else None, ([*row[:-1], f"{row[-1]}{dot}"] for row in rows))


def _payments(path: Path) -> None:
    """Write rows of time, 28 unnamed features, amount, and whether it was fraud (1 in 200)."""
    rng = random.Random(0)
    header = [f'"{name}"' for name in ("Time", *(f"V{n}" for n in range(1, 29)), "Amount", "Class")]
    rows = (
        [n, *(round(rng.gauss(0, 1), 5) for _ in range(28)), round(rng.expovariate(0.01), 2), f'"{int(n % 200 == 0)}"']
        for n in range(PAYMENTS)
    )
    _table(path, header, rows)


def _sentences(path: Path) -> None:
    """Write pairs of sentences of at most 16 and 57 characters."""
    rng = random.Random(0)

    def words(most: int) -> str:
        return "".join(
            rng.choice(string.ascii_letters + string.digits + " ,.'!?-") for _ in range(rng.randint(4, most))
        )

    lines = "".join(f"{words(16)}\t{words(57)}\tby nobody\n" for _ in range(SENTENCES))
    _zipped(path, **{"fra.txt": lines.encode()})


def _prose(path: Path) -> None:
    rng = random.Random(0)
    letters = string.ascii_lowercase + string.digits + " .,;:'\"()-_=?!\n"
    path.write_text("".join(rng.choice(letters) for _ in range(CHARACTERS)), encoding="utf-8")


def _picture(size: tuple[int, int], mode: str, shape: str, most: int, seed: int) -> bytes:
    """Write an image file of noise below `most`."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(seed)
    dimensions = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    stream = io.BytesIO()
    Image.fromarray(rng.integers(1, most, dimensions, "uint8"), mode).save(stream, shape)
    return stream.getvalue()


def _faces(path: Path) -> None:
    _zipped(path, **{f"faces/{n:06}.jpg": _picture((178, 218), "RGB", "JPEG", 256, n) for n in range(FACES)})


def _pets(folder: Path) -> None:
    """Write photographs, and for each a map with one of three classes per pixel."""
    pictures, maps = folder / "images", folder / "annotations/trimaps"
    pictures.mkdir()
    maps.mkdir(parents=True)
    for n in range(PETS):
        (pictures / f"pet_{n:04}.jpg").write_bytes(_picture((160, 160), "RGB", "JPEG", 256, n % 16))
        (maps / f"pet_{n:04}.png").write_bytes(_picture((160, 160), "L", "PNG", 4, n % 16))


def _captchas(folder: Path) -> None:
    rng = random.Random(0)
    (folder / "captcha_images_v2").mkdir()
    for n in range(CAPTCHAS):
        word = "".join(rng.choice("2345678bcdefgmnpwxy") for _ in range(5))
        (folder / f"captcha_images_v2/{word}.png").write_bytes(_picture((200, 50), "L", "PNG", 256, n))


def _reviews(folder: Path) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choice(string.ascii_lowercase) for _ in range(rng.randint(2, 9))) for _ in range(5_000)]
    for part in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (folder / "aclImdb" / part).mkdir(parents=True)
        for n in range(REVIEWS_A_FOLDER):
            text = " ".join(rng.choice(words) for _ in range(rng.randint(50, 400)))
            (folder / "aclImdb" / part / f"{n}_7.txt").write_text(f"{text}.<br />{rng.choice(words)}", encoding="utf-8")


FILES: dict[str, Callable[[Path], None]] = {
    "ml-latest-small.zip": _movielens,
    "jena_climate_2009_2016.csv.zip": _weather,
    "FordA_TRAIN.tsv": lambda path: _motor(MOTOR_ROWS["FordA_TRAIN.tsv"], path),
    "FordA_TEST.tsv": lambda path: _motor(MOTOR_ROWS["FordA_TEST.tsv"], path),
    "art_daily_small_noise.csv": _five_minutes,
    "art_daily_jumpsup.csv": _five_minutes,
    "heart.csv": _patients,
    "adult.data": _census,
    "adult.test": lambda path: _census(path, first_line="|1x3 Cross validator", dot="."),
    "creditcard.csv": _payments,
    "fra-eng.zip": _sentences,
    "nietzsche.txt": _prose,
    "data.zip": _faces,
}
"""Functions that write a file, by the last part of its URL."""
FOLDERS: dict[str, Callable[[Path], None]] = {"pets": _pets, "captchas": _captchas, "reviews": _reviews}
"""Functions that write the files of an example's shell commands."""
