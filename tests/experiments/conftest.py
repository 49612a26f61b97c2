import pytest

import tiny_omniglot


@pytest.fixture(scope="module")
def tiny_data(tmp_path_factory):
    """The tiny data set is what tasks find."""
    place = tmp_path_factory.mktemp("omniglot")
    tiny_omniglot.write_archive(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQUIPOOL_DATA", str(place))
        yield place
