from likewise.nn.backbone import Backbone as Backbone
from likewise.nn.backbone import ConvNet as ConvNet
from likewise.nn.backbone import as_backbone as as_backbone
from likewise.nn.efficientnet import EfficientNetLite0 as EfficientNetLite0
from likewise.nn.inception import InceptionBN as InceptionBN
from likewise.nn.pretrained import NAMES as NAMES
from likewise.nn.pretrained import named as named
from likewise.nn.resnet import ResNet50 as ResNet50
