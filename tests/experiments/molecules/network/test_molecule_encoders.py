"""Embeddings of categories, against OGB's."""

import pytest
import torch

from equipool.experiments.molecules.network.layers import CategoryEncoder, MultiHot


def test_it_is_the_sum_of_embeddings():
    sizes = (4, 2, 3)
    encoder = CategoryEncoder(sizes, 5)
    categories = torch.tensor([[3, 0, 2], [0, 1, 1]], dtype=torch.uint8)
    tables = encoder.tables()
    expected = torch.stack(
        [tables[0][3] + tables[1][0] + tables[2][2], tables[0][0] + tables[1][1] + tables[2][1]]
    )
    torch.testing.assert_close(encoder(MultiHot(sizes)(categories)), expected)


def test_it_starts_as_ogb_does():
    torch.manual_seed(0)
    encoder = CategoryEncoder((100, 2), 50)
    for table in encoder.tables():
        bound = (6 / sum(table.shape)) ** 0.5  # of Glorot's uniform distribution
        assert 0.9 * bound < table.abs().max() <= bound


def test_it_has_the_parameters_of_ogbs_own():
    encoders = pytest.importorskip("ogb.graphproppred.mol_encoder")
    from equipool.experiments.molecules.data.molecule_set import ATOM_CATEGORIES, BOND_CATEGORIES

    for theirs, sizes, name in (
        (encoders.AtomEncoder(7), ATOM_CATEGORIES, "atom_embedding_list"),
        (encoders.BondEncoder(7), BOND_CATEGORIES, "bond_embedding_list"),
    ):
        own = CategoryEncoder(sizes, 7)
        with torch.no_grad():
            own.weight.copy_(torch.cat([table.weight for table in getattr(theirs, name)]))
        categories = torch.stack([torch.randint(size, (9,)) for size in sizes], dim=1)
        torch.testing.assert_close(own(MultiHot(sizes)(categories.byte())), theirs(categories))


def test_every_category_has_a_gradient_of_its_own():
    encoder = CategoryEncoder((3, 2), 4)
    encoder(MultiHot((3, 2))(torch.tensor([[2, 1], [2, 0]]))).sum().backward()
    expected = torch.tensor([0.0, 0.0, 2.0, 1.0, 1.0]).unsqueeze(-1).expand(-1, 4)
    torch.testing.assert_close(encoder.weight.grad, expected)
